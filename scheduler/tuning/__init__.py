"""Tuning: measure several plans and choose the fastest."""

from .search import tune
from .tuned import Tuned

__all__ = ["Tuned", "tune"]
