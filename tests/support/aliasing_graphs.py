"""Random graphs of what shares bytes: slices, parts, joins, and nodes that overwrite an input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from plait import Graph, GraphBuilder
from plait.graph.values.tensor import Array

MAX_ELEMENTS = 4096


class Case(NamedTuple):
    """A graph over int32, what is fed, and what numpy makes of it."""

    graph: Graph
    inputs: dict[str, Array]
    expected: dict[str, Array]


@st.composite
def cases(draw: st.DrawFn, max_nodes: int = 14) -> Case:
    """Draw a graph of matrices whose rows are aligned on no device, on some, or on all."""
    width = draw(st.sampled_from([3, 16, 16, 128]))
    builder, values, inputs = GraphBuilder("random"), dict[str, Array](), dict[str, Array]()
    for index in range(draw(st.integers(1, 2))):
        rows = draw(st.integers(1, 5))
        name = builder.input(f"x{index}", "int32", (rows, width))
        random = np.random.default_rng(rows * 7 + index)
        inputs[name] = random.integers(-99, 99, (rows, width)).astype(np.int32)
        values[name] = inputs[name]
    for _ in range(draw(st.integers(1, max_nodes))):
        kind = draw(st.sampled_from(KINDS))
        kind(draw, builder, values)
    if len(values) == len(inputs):
        _negate(draw, builder, values)
    computed = [name for name in values if name not in inputs]
    fetched = draw(st.lists(st.sampled_from(computed), min_size=1, max_size=3, unique=True))
    for one in fetched:
        builder.output(one, one)
    return Case(builder.build(), inputs, {name: values[name] for name in fetched})


Values = dict[str, Array]
Kind = Callable[[st.DrawFn, GraphBuilder, Values], None]


def _pick(draw: st.DrawFn, values: Values) -> str:
    """Return a tensor, a late one rather than an early one."""
    return draw(st.sampled_from(list(values)[::-1]))


def _bounds(draw: st.DrawFn, length: int) -> tuple[int, int]:
    begin = draw(st.integers(0, length - 1))
    return begin, draw(st.integers(begin + 1, length))


def _slice(draw: st.DrawFn, builder: GraphBuilder, values: Values) -> None:
    name, axis = _pick(draw, values), draw(st.sampled_from([0, 0, 1]))
    begin, end = _bounds(draw, values[name].shape[axis])
    made = builder.op("Slice", name, *(np.array([n], np.int64) for n in (begin, end, axis)))
    index: tuple[Any, ...] = (slice(None),) * axis + (slice(begin, end),)
    values[made] = values[name][index].copy()


def _split(draw: st.DrawFn, builder: GraphBuilder, values: Values) -> None:
    name = _pick(draw, values)
    rows = values[name].shape[0]
    if rows == 1:
        return
    cut = draw(st.integers(1, rows - 1))
    made = builder.op("Split", name, np.array([cut, rows - cut]), axis=0, outputs=2)
    parts = np.split(values[name], [cut])
    values.update({part: value.copy() for part, value in zip(made, parts, strict=True)})


def _gather(draw: st.DrawFn, builder: GraphBuilder, values: Values) -> None:
    name = _pick(draw, values)
    rows = values[name].shape[0]
    indices = draw(st.lists(st.integers(-rows, rows - 1), min_size=1, max_size=3))
    made = builder.op("Gather", name, np.array(indices, np.int64), axis=0)
    values[made] = values[name].take(indices, 0)


def _concat(draw: st.DrawFn, builder: GraphBuilder, values: Values) -> None:
    first, axis = _pick(draw, values), draw(st.sampled_from([0, 0, 0, 1]))
    kept = values[first].shape[1 - axis]
    fitting = [n for n, value in values.items() if value.shape[1 - axis] == kept][::-1]
    more = draw(st.lists(st.sampled_from(fitting), min_size=1, max_size=3))
    names = [first, *more]
    if sum(values[name].size for name in names) <= MAX_ELEMENTS:
        made = builder.op("Concat", *names, axis=axis)
        values[made] = np.concatenate([values[name] for name in names], axis)


def _reshape(draw: st.DrawFn, builder: GraphBuilder, values: Values) -> None:
    name = _pick(draw, values)
    shape = (1, values[name].size)
    made = builder.op("Reshape", name, np.array(shape, np.int64))
    values[made] = values[name].reshape(shape).copy()


def _transpose(draw: st.DrawFn, builder: GraphBuilder, values: Values) -> None:
    name = _pick(draw, values)
    values[builder.op("Transpose", name)] = values[name].T.copy()


def _negate(draw: st.DrawFn, builder: GraphBuilder, values: Values) -> None:
    name = _pick(draw, values)
    values[builder.op("Neg", name)] = -values[name]


def _add(draw: st.DrawFn, builder: GraphBuilder, values: Values) -> None:
    name = _pick(draw, values)
    fitting = [n for n, value in values.items() if value.shape == values[name].shape]
    other = draw(st.sampled_from(fitting))
    values[builder.op("Add", name, other)] = values[name] + values[other]


KINDS: tuple[Kind, ...] = (
    *(_slice, _split, _gather, _reshape, _transpose),
    *(_concat,) * 3,
    *(_negate,) * 3,
    *(_add,) * 2,
)
