"""Stages of a plan: parts of its graph with lengths that become known while an item runs.

Memory is planned for the largest lengths. A stage begins when the lengths that it reads are
computed; the first stage reads lengths of inputs only.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...graph.core.ir import Graph
from .shapes import Bounds


@dataclass(frozen=True, slots=True)
class ComputedLengths:
    """A node that computes lengths, in buffers of the largest ones."""

    node: str
    tensors: tuple[str, ...]
    """The tensors that it writes, each from the start of its buffer."""
    shapes: str
    """The output of the plan's graph with their shapes, concatenated."""
    ranks: tuple[int, ...]
    """The ranks of `tensors`."""


@dataclass(frozen=True, slots=True)
class PlanStage:
    """A part of a plan's graph with the same symbols."""

    graph: Graph
    """With the largest lengths."""
    template: Graph | None
    """The graph with symbols; None if it has none."""
    computes: tuple[ComputedLengths, ...]
    """The nodes that compute lengths of later stages, or of results."""
    limits: tuple[tuple[str, int, str, tuple[int, int]], ...]
    """Bounds of computed lengths: tensor, axis, symbol, and the smallest and largest length."""
    bounds: Bounds
    """The smallest and largest length of each symbol in the template."""
