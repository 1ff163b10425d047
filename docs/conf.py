"""Settings of the documentation site: ``make docs`` builds it in ``site/``, and a warning is an error."""

from __future__ import annotations

import sys
from pathlib import Path

import latecomer

sys.path.insert(0, str(Path(__file__).parent / "_sphinx"))

project, author, copyright = "Latecomer", "The Latecomer authors", "The Latecomer authors"
version = release = latecomer.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "mathml",
    "public_names",
    "own_pages",
    "units",
]
exclude_patterns = ["_sphinx", "architecture/*.py"]

# Pages are Markdown, readable without the site too. Links to headings are checked as GitHub writes them.
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

# Docstrings are in Google style. `name` in single backticks is code.
default_role = "literal"
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
add_module_names = False
napoleon_google_docstring, napoleon_numpy_docstring = True, False
napoleon_use_rtype, napoleon_use_ivar = False, True
maximum_signature_line_length = 100

html_theme = "furo"
html_title = f"Latecomer {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_math_renderer = "mathml"
copybutton_prompt_text = r">>> |\.\.\. |\$ |first\$  |other\$  "
copybutton_prompt_is_regexp = True
