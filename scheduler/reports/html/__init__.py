"""The report as one HTML file that needs nothing else."""

from .page import framed, write_html

__all__ = ["framed", "write_html"]
