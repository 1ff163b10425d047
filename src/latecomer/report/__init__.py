"""Tables, figures, the self-contained HTML pages."""

from .figures import svg
from .page import write_demo
from .reproduction import write_reproduction
from .research import plane, rate_curves
from .research_tables import hard_parts, number, pareto_parts, real_parts
from .sections import Section, delay_section, sensitivity_section, training_section
from .tables import Row, rows

__all__ = [
    "Row",
    "Section",
    "delay_section",
    "hard_parts",
    "number",
    "pareto_parts",
    "plane",
    "rate_curves",
    "real_parts",
    "rows",
    "sensitivity_section",
    "svg",
    "training_section",
    "write_demo",
    "write_reproduction",
]
