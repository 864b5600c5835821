"""The report as one HTML file that needs nothing else."""

from .page import write_html

__all__ = ["write_html"]
