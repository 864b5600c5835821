"""Gradients of recurrent cells: short sequences are unrolled, long ones scanned in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ..decompositions.recurrent import MOST_STEPS
from ..operators.recurrent import (
    GRU_FUNCTIONS,
    LENGTHS,
    LSTM_FUNCTIONS,
    RNN_FUNCTIONS,
    count_directions,
    list_activations,
    to_attributes,
)
from .elementwise import Gradients
from .formula import Term
from .movement import make_range
from .registry import Adjoint, gradient
from .stepping import Sliced, scan
from .via_decomposition import Inputs, differentiate_expansion, differentiate_through

_STATES, _PEEPHOLES = 5, 7
"""Inputs after x, w, r, b and lengths."""

_BATCH_FIRST = (1, 0, 2)


def _differentiate(usual: Sequence[str], at: Adjoint) -> Gradients:
    """Unroll `at` if its sequence is short, else scan pieces; `usual` are the default activations.

    The pieces are single steps if sequences have lengths of their own.
    """
    sequence = at.input(0).spec.shape or ("?",) * 3
    steps, batch = sequence[at["layout"]], sequence[1 - at["layout"]]
    if 0 in (steps, batch):
        yield from _differentiate_empty(at)
    elif isinstance(steps, int) and 0 < steps <= MOST_STEPS and at.optional(LENGTHS) is None:
        yield from differentiate_expansion(at)
    else:
        yield from differentiate_through(at, partial(_scan, at, usual))


gradient("LSTM")(partial(_differentiate, LSTM_FUNCTIONS))
gradient("GRU")(partial(_differentiate, GRU_FUNCTIONS))
gradient("RNN")(partial(_differentiate, RNN_FUNCTIONS))


def _differentiate_empty(at: Adjoint) -> Gradients:
    """Return the gradients of `at` for an empty sequence: its last states equal the first."""
    for index, x in enumerate(at.inputs):
        if x is not None and _STATES <= index < _STATES + _count_states(at):
            yield index, at.gradient(index - _STATES + 1)
        elif x is not None:
            yield index, at.formula.like(x, 0)


def _scan(at: Adjoint, usual: Sequence[str], inputs: Inputs) -> list[Term]:
    formula, count = at.formula, count_directions(at.node.attributes)
    given = [*inputs, *[None] * (8 - len(inputs))]
    states = given[_STATES : _STATES + _count_states(at)]
    if at["layout"]:
        states = [one and one.transposed(_BATCH_FIRST) for one in states]
    parts = [_split(one, count) for one in (*given[1:4], given[_PEEPHOLES], *states)]
    ways = [
        _run_one_way(at, usual, way, (given[0], given[LENGTHS]), [part[way] for part in parts])
        for way in range(count)
    ]
    *finals, y = (
        each[0] if count == 1 else formula.op("Concat", *each, axis=axis)
        for each, axis in zip(zip(*ways, strict=True), (*[0] * _count_states(at), 1), strict=True)
    )
    if at["layout"]:
        finals = [one.transposed(_BATCH_FIRST) for one in finals]
        y = y.transposed((2, 0, 1, 3))
    return [y, *finals]


def _count_states(at: Adjoint) -> int:
    return 2 if at.node.op == "LSTM" else 1


def _split(x: Term | None, count: int) -> list[Term | None]:
    if x is None or count == 1:
        return [x] * count
    return [*x.formula.split("Split", x, x.formula.constant([1] * count), outputs=count, axis=0)]


def _run_one_way(
    at: Adjoint,
    usual: Sequence[str],
    way: int,
    sequence: tuple[Term | None, Term | None],
    parts: Sequence[Term | None],
) -> list[Term]:
    """Return the last states and y of the node `at` in direction `way`.

    `sequence` holds x and its lengths. `parts` are weights and first states, and `usual` are the
    default activations.
    """
    formula, (x, lengths) = at.formula, sequence
    weights, states = parts[:4], parts[4:]
    w, r = weights[:2]
    assert x is not None
    assert w is not None
    assert r is not None
    if at["layout"]:
        x = x.transposed(_BATCH_FIRST)
    hidden = formula.shape_of(r, 2, 3)
    shape = formula.joined(formula.constant([1]), formula.shape_of(x, 1, 2), hidden)
    begin = [formula.filled(shape, 0, x.dtype) if one is None else one for one in states]
    slices = [Sliced(_split_pieces(x, 1 if lengths is not None else _choose_piece(x)))]
    captured = [one for one in weights if one is not None]
    if lengths is not None:
        slices.append(Sliced(make_range(formula.shape_of(x, 0, 1))))
        captured.append(lengths.cast("int64").op("Unsqueeze", formula.constant([1])))
    present = [one is not None for one in weights]
    step = partial(_step, at.node.op, _list_attributes(at, usual, way), present)
    backward = at["direction"] == "reverse" or way == 1
    *finals, y = scan(formula, step, begin, slices, captured, backward=backward)
    return [*finals, y.reshaped(formula.joined(formula.shape_of(x, 0, 1), shape))]


def _choose_piece(x: Term) -> int:
    """Return how many steps of the sequence `x` form a piece; all pieces have as many."""
    steps, _, features = x.spec.shape or ("?",) * 3
    if not isinstance(steps, int) or not isinstance(features, int):
        return 1
    return max(length for length in range(1, MOST_STEPS + 1) if steps % length == 0)


def _split_pieces(x: Term, length: int) -> Term:
    """Return `x` as (pieces, `length` steps, batch, features); the steps must divide evenly."""
    if length == 1:
        return x.op("Unsqueeze", x.formula.constant([1]))
    assert x.spec.shape is not None
    steps, _, features = x.spec.shape
    assert isinstance(steps, int)
    assert isinstance(features, int)
    return x.reshaped(x.formula.constant([steps // length, length, -1, features]))


def _list_attributes(at: Adjoint, usual: Sequence[str], way: int) -> dict[str, Any]:
    functions = list_activations(at.node.attributes, usual)[way * len(usual) :][: len(usual)]
    direction = (
        ("forward", "reverse")[way] if at["direction"] == "bidirectional" else at["direction"]
    )
    alike = {"direction": direction, "layout": 0, **to_attributes(functions)}
    return {**at.node.attributes, **alike}


def _step(
    op: str,
    attributes: dict[str, Any],
    present: Sequence[bool],
    states: Sequence[Term],
    slices: Sequence[Term],
    captured: Sequence[Term],
) -> tuple[list[Term], list[Term]]:
    given = iter(captured)
    w, r, b, peepholes = (next(given) if here else None for here in present)
    inputs = [slices[0], w, r, b, None, *states, *([] if peepholes is None else [peepholes])]
    y, *made = slices[0].formula.split(op, *inputs, outputs=1 + len(states), **attributes)
    for lengths in given:  # an ended sequence keeps its state, and outputs nothing
        lasts = slices[1] < lengths
        y = y.where(lasts)
        made = [new.where(lasts, old) for new, old in zip(made, states, strict=True)]
    return made, [y]
