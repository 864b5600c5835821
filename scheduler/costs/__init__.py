"""Costs: modelled or measured times of nodes and copies."""

from .costs import Costs

__all__ = ["Costs"]
