from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait.graph.core.aliasing import find_joins, find_runs, find_views, is_copy
from plait.graph.core.ir import Graph
from plait.graph.core.operator import Alias, define, unregister_operator
from plait.graph.values.tensor import Array

SHAPES = st.lists(st.sampled_from([1, 1, 2, 3]), min_size=1, max_size=4).map(tuple)
ITEM = 4


def made(op: str, *inputs: str | Array, shapes: Sequence[Any], **attributes: Any) -> Graph:
    """Return a graph of one node over int32 tensors x0, x1, …"""
    builder = pl.GraphBuilder("one")
    for index, shape in enumerate(shapes):
        builder.input(f"x{index}", "int32", shape)
    found = builder.op(op, *inputs, **attributes)
    for name in [found] if isinstance(found, str) else found:
        builder.output(name, name)
    return builder.build()


def numbered(shape: Sequence[int], first: int = 0) -> Array:
    """Return an array of each element's place in memory."""
    size = int(np.prod(shape))
    return np.arange(first, first + size).reshape(shape)


def run_in(places: Array) -> int | None:
    """Return where elements begin that are one run, None where they are not or are none."""
    flat = places.reshape(-1).tolist()
    return flat[0] if flat and flat == list(range(flat[0], flat[0] + len(flat))) else None


def aliases_of_outputs(results: Sequence[Array]) -> list[Alias]:
    begins = [run_in(result) for result in results]
    return [Alias(i, 0, ITEM * begin) for i, begin in enumerate(begins) if begin is not None]


@given(SHAPES, st.data())
def test_a_slice_is_a_view_exactly_where_its_elements_are_one_run(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    bound = st.integers(-4, 4)
    slices = [
        (data.draw(bound), data.draw(bound), data.draw(st.sampled_from([1, 1, 2]))) for _ in shape
    ]
    starts, ends, steps = (np.array(column, np.int64) for column in zip(*slices, strict=True))
    axes = np.arange(len(shape))
    graph = made("Slice", "x0", starts, ends, axes, steps, shapes=[shape])
    taken = numbered(shape)[tuple(slice(*bounds) for bounds in slices)]
    assert list(find_views(graph, graph.nodes[0])) == aliases_of_outputs([taken])


@given(SHAPES, st.data())
def test_the_parts_of_a_split_are_views_exactly_where_they_are_runs(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    cut = data.draw(st.integers(0, shape[axis]))
    sizes = np.array([cut, shape[axis] - cut], np.int64)
    graph = made("Split", "x0", sizes, shapes=[shape], axis=axis, outputs=2)
    parts = np.split(numbered(shape), [cut], axis)
    assert list(find_views(graph, graph.nodes[0])) == aliases_of_outputs(parts)


@given(SHAPES, st.data())
def test_a_gather_is_a_view_exactly_where_it_takes_one_run(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    index = st.integers(-shape[axis], shape[axis] - 1)
    indices = np.array(data.draw(st.lists(index, min_size=1, max_size=3)), np.int64)
    indices = data.draw(st.sampled_from([indices, indices[0], indices.reshape(1, -1)]))
    graph = made("Gather", "x0", np.asarray(indices), shapes=[shape], axis=axis)
    taken = numbered(shape).take(indices, axis)
    assert list(find_views(graph, graph.nodes[0])) == aliases_of_outputs([taken])


def test_a_gather_outside_its_axis_is_no_view() -> None:
    """Its kernel has to say so."""
    for indices in ([3], [2, 3], [-4], [-4, -3]):
        graph = made("Gather", "x0", np.array(indices, np.int64), shapes=[(3, 2)])
        assert find_views(graph, graph.nodes[0]) == ()


def test_a_gather_from_an_axis_of_any_length_is_a_view() -> None:
    graph = made("Gather", "x0", np.array([7, 8], np.int64), shapes=[(2**40, 2)])
    assert find_views(graph, graph.nodes[0]) == (Alias(0, 0, 7 * 2 * 4),)


@given(SHAPES, st.data())
def test_inputs_of_a_concat_are_runs_exactly_where_numpy_puts_them_in_one(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    lengths = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    shapes = [(*shape[:axis], length, *shape[axis + 1 :]) for length in lengths]
    names = [f"x{index}" for index in range(len(shapes))]
    graph = made("Concat", *names, shapes=shapes, axis=axis)
    owners = [np.full(one, index) for index, one in enumerate(shapes)]
    joined = np.concatenate(owners, axis).reshape(-1)
    wanted = []
    for index in range(len(shapes)):
        begin = run_in(np.flatnonzero(joined == index))
        if begin is not None:
            wanted.append(Alias(0, index, ITEM * begin))
    assert list(find_joins(graph, graph.nodes[0])) == wanted
    covered = sum(run.nbytes for run in find_runs(graph, graph.nodes[0]))
    assert covered in (0, ITEM * joined.size)


@given(SHAPES, st.data())
def test_a_transpose_is_a_view_exactly_where_it_moves_no_element(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    perm = data.draw(st.sampled_from([None, *permutations(range(len(shape)))]))
    given_perm = {} if perm is None else {"perm": perm}
    graph = made("Transpose", "x0", shapes=[shape], **given_perm)
    moved = numbered(shape).transpose(perm)
    assert list(find_views(graph, graph.nodes[0])) == aliases_of_outputs([moved])


@given(SHAPES, st.data())
def test_an_expand_is_a_view_exactly_where_it_repeats_nothing(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    wanted = [data.draw(st.sampled_from([length, 1] if length > 1 else [1, 2])) for length in shape]
    target = (*data.draw(st.sampled_from([(), (1,), (2,)])), *wanted)
    graph = made("Expand", "x0", np.array(target, np.int64), shapes=[shape])
    repeated = np.broadcast_to(numbered(shape), np.broadcast_shapes(shape, target))
    assert list(find_views(graph, graph.nodes[0])) == aliases_of_outputs([repeated])


def test_exact_operators_share_bytes_as_their_like_do() -> None:
    cut = made("cvm.strided_slice", "x0", shapes=[(4, 5)], begin=(1, 0), end=(3, 5))
    assert find_views(cut, cut.nodes[0]) == (Alias(0, 0, 5 * ITEM),)
    columns = made("cvm.strided_slice", "x0", shapes=[(4, 5)], begin=(0, 1), end=(4, 2))
    assert find_views(columns, columns.nodes[0]) == ()
    joined = made("cvm.concatenate", "x0", "x1", shapes=[(1, 2), (1, 3)], axis=1)
    assert find_joins(joined, joined.nodes[0]) == (Alias(0, 0), Alias(0, 1, 2 * ITEM))


def test_a_reshape_is_a_run_of_all_its_bytes() -> None:
    graph = made("Reshape", "x0", np.array([6], np.int64), shapes=[(2, 3)])
    node = graph.nodes[0]
    (run,) = find_runs(graph, node)
    assert (run.source, run.start, run.begin, run.nbytes) == ("x0", 0, 0, 24)
    assert is_copy(node, (run,))


def test_a_dropout_with_a_mask_does_more_than_copy() -> None:
    builder = pl.GraphBuilder("dropout")
    x = builder.input("x", "float32", (4,))
    y, mask = builder.op("Dropout", x, outputs=2)
    builder.output("y", y)
    builder.output("mask", mask)
    graph = builder.build()
    node = graph.nodes[0]
    assert [run.target for run in find_runs(graph, node)] == [node.outputs[0]]
    assert not is_copy(node, find_runs(graph, node))


def test_an_output_that_is_not_asked_for_is_no_view() -> None:
    builder = pl.GraphBuilder("half")
    x = builder.input("x", "int32", (4,))
    _, second = builder.op("Split", x, np.array([1, 3]), axis=0, outputs=["", "second"])
    builder.output(second, second)
    graph = builder.build()
    assert find_views(graph, graph.nodes[0]) == (Alias(1, 0, ITEM),)


OUTSIDE = [
    ("parts", [Alias(0, 0, ITEM)], "share bytes 4 to 20 of int32[4], which has 16"),
    ("parts", [Alias(0, 0, -ITEM)], "share bytes -4 to 12 of int32[4], which has 16"),
    ("parts", [Alias(0, 2)], "there is no output 0 or no input 2"),
    ("joins", [Alias(0, 0), Alias(0, 1, ITEM)], "share bytes 4 to 20 of int32[4], which has 16"),
    ("joins", [Alias(1, 0)], "there is no output 1 or no input 0"),
    ("joins", [Alias(0, 0), Alias(0, 1)], "inputs overlap in output 0, at byte 0"),
]


@pytest.mark.parametrize(("rule", "aliases", "what"), OUTSIDE)
def test_a_rule_that_names_bytes_that_are_not_there_is_refused(
    rule: str, aliases: list[Alias], what: str
) -> None:
    """A plan lays other tensors beside them: their nodes' results would be overwritten."""
    name = f"test_aliasing.{rule}"
    chosen: dict[str, Any] = {rule: lambda call: aliases}
    define(name, inputs="x y", **chosen)(lambda call: [call.spec(0)])
    try:
        graph = made(name, "x0", "x1", shapes=[(4,), (4,)])
        with pytest.raises(pl.OperatorError) as caught:
            find_runs(graph, graph.nodes[0])
    finally:
        unregister_operator(name)
    assert caught.value.what.startswith(f"the rule {rule!r} of {name} is wrong: ")
    assert caught.value.what.endswith(what)
