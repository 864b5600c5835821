"""Costs: how long nodes and copies take, by a model or as measured."""

from .costs import Costs

__all__ = ["Costs"]
