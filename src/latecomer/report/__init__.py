"""Tables, figures, the self-contained HTML page."""

from .page import write_demo
from .tables import Row, rows

__all__ = ["Row", "rows", "write_demo"]
