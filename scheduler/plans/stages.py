"""Stages of a plan: parts of its graph whose lengths are known at different times of an item.

All of it is planned for the largest lengths. A stage begins when the lengths that it reads have
been computed; those of the first are the inputs' own.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...graph.ir import Graph
from .shapes import Bounds


@dataclass(frozen=True, slots=True)
class ComputedLengths:
    """A node that computes lengths, in buffers of the largest ones.

    Attributes
    ----------
    node : str
    tensors : tuple of str
        What it writes: of each, so much from its first byte on as the lengths say.
    shapes : str
        The output of the plan's graph in which it leaves their shapes, one behind the other.
    ranks : tuple of int
        Of `tensors`.
    """

    node: str
    tensors: tuple[str, ...]
    shapes: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlanStage:
    """A part of a plan's graph that has symbols in common.

    Attributes
    ----------
    graph : Graph
        For the largest lengths.
    template : Graph or None
        The same with its symbols; None where it has none.
    computes : tuple of ComputedLengths
        The nodes of it that later stages wait for, or that results are as long as.
    limits : tuple of (str, int, str, (int, int))
        Of what these write: tensor, axis, symbol, and its least and largest length.
    bounds : Mapping of str to (int, int)
        Of the symbols in its template: least and largest lengths.
    """

    graph: Graph
    template: Graph | None
    computes: tuple[ComputedLengths, ...]
    limits: tuple[tuple[str, int, str, tuple[int, int]], ...]
    bounds: Bounds
