"""Tables, figures, the self-contained HTML pages."""

from .page import write_demo
from .reproduction import write_reproduction
from .sections import Section, delay_section, sensitivity_section, training_section
from .tables import Row, rows

__all__ = [
    "Row",
    "Section",
    "delay_section",
    "rows",
    "sensitivity_section",
    "training_section",
    "write_demo",
    "write_reproduction",
]
