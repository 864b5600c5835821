"""The report as one HTML file that needs nothing else."""

from .frame import framed
from .page import write_html

__all__ = ["framed", "write_html"]
