"""Scans in gradient rules: a function of terms becomes the graph of one step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from ..building.builder import GraphBuilder
from ..values.tensor import Dim
from .formula import Formula, Term

Step: TypeAlias = Callable[
    [Sequence[Term], Sequence[Term], Sequence[Term]], tuple[Sequence[Term], Sequence[Term]]
]
"""Returns the next states and the stacked outputs, given states, slices and captured terms."""


class Sliced(NamedTuple):
    """A tensor with a slice for each step, and the axis of the steps."""

    term: Term
    axis: int = 0


def scan(
    formula: Formula,
    step: Step,
    states: Sequence[Term],
    slices: Sequence[Sliced],
    captured: Sequence[Term] = (),
    *,
    backward: bool = False,
) -> list[Term]:
    """Write a Scan in `formula`; return the last `states`, then the stacked outputs of all steps.

    `step` gets states, a part of each of `slices`, and `captured`; `backward` reverses the order.
    """
    b = GraphBuilder("step")
    inner = Formula(b)

    def declared(kind: str, terms: Sequence[Term], axes: Sequence[int | None]) -> list[Term]:
        return [
            inner.term(b.input(f"{kind}{i}", term.dtype, _drop_axis(term, axis)))
            for i, (term, axis) in enumerate(zip(terms, axes, strict=True))
        ]

    scanned, axes = [one.term for one in slices], [one.axis for one in slices]
    following, stacked = step(
        declared("state", states, [None] * len(states)),
        declared("slice", scanned, axes),
        declared("captured", captured, [None] * len(captured)),
    )
    for index, term in enumerate((*following, *stacked)):
        b.output(f"output{index}", term.name)
    return formula.split(
        "Scan",
        *(*states, *scanned, *captured),
        outputs=len(following) + len(stacked),
        body=b.build(),
        num_scan_inputs=len(slices),
        captured=len(captured),
        scan_input_axes=axes,
        scan_input_directions=[int(backward)] * len(slices),
        scan_output_directions=[int(backward)] * len(stacked),
    )


def _drop_axis(term: Term, axis: int | None) -> tuple[Dim, ...]:
    shape = term.spec.shape or ("?",) * term.rank
    return tuple(dim for place, dim in enumerate(shape) if place != axis)
