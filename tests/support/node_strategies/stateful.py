"""Nodes that hand values on to variables, and those that order effects."""

from __future__ import annotations

from .drawing import ANY, Draw, NodeCase, Strategy, choose, integer, shape, tensor


def assign(draw: Draw) -> NodeCase:
    """Draw what a variable holds, and what it shall hold."""
    dtype, of = choose(draw, ANY), shape(draw)
    return NodeCase([tensor(draw, dtype, of), tensor(draw, dtype, of)])


def several(draw: Draw) -> NodeCase:
    """Draw a tensor, and others of any kind."""
    count = integer(draw, 2, 4)
    return NodeCase([tensor(draw, choose(draw, ANY), shape(draw)) for _ in range(count)])


STRATEGIES: dict[str, Strategy] = {"Assign": assign, "After": several, "Group": several}
