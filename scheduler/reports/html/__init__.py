"""The report as one HTML file that needs nothing else."""

from .page import render_frame, write_html

__all__ = ["render_frame", "write_html"]
