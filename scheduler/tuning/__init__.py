"""Tuning: plans that are measured, not only predicted, and the fastest of them taken."""

from .search import tune
from .tuned import Tuned

__all__ = ["Tuned", "tune"]
