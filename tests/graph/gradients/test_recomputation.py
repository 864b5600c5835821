"""Nodes that are computed again for gradients, from which checkpoints, and those that are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, combinations
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.graph.core.ir import Node
from plait.graph.gradients.checkpoints import Checkpoints, choose_checkpoints
from plait.graph.gradients.formula import Term
from plait.graph.gradients.recomputation import is_again
from plait.graph.gradients.registry import Adjoint, gradient
from plait.graph.values.tensor import Array


@pl.operator(name="test_recomputation.halved")
def halved(x: Array) -> Array:
    return np.asarray(x / 2)


@gradient("test_recomputation.halved")
def halved_gradient(at: Adjoint) -> Iterator[tuple[int, Term]]:
    yield 0, at.dy * 0.5


def sines(length: int, dtype: str = "float64") -> tuple[pl.GraphBuilder, str]:
    """Return sin(sin(...x)), with tensors h0, h1, ..., and the last one's name."""
    b = pl.GraphBuilder("chain")
    h = b.input("x", dtype, (3,))
    for i in range(length):
        (h,) = b.op("Sin", h, name=f"n{i}", outputs=[f"h{i}"])
    return b, h


def again(b: pl.GraphBuilder) -> list[str]:
    return [node.name for node in b.nodes if is_again(node)]


def starts(b: pl.GraphBuilder) -> list[Node]:
    return [node for node in b.nodes if node.op == "After"]


def test_what_lies_between_checkpoints_is_computed_again_the_last_segment_first() -> None:
    b, y = sines(8)
    pl.gradients(b, y, "x", checkpoint=["h2", "h5"])
    assert again(b) == ["again/n3", "again/n4", "again/n0", "again/n1"]
    assert [node.inputs[0] for node in starts(b)] == ["h2", "x"]


def test_copies_wait_for_the_gradient_that_is_on_its_way() -> None:
    b, y = sines(8)
    pl.gradients(b, y, "x", checkpoint=["h2", "h5"])
    names = [node.name for node in b.nodes]
    for start in starts(b):
        assert start.inputs[1].startswith("gradient/")
        copies = [node for node in b.nodes if start.outputs[0] in node.inputs]
        assert copies
        assert all(names.index(copy.name) > names.index(start.name) for copy in copies)


def test_copies_that_read_earlier_copies_wait_for_their_own_gradient() -> None:
    b, h = sines(4)
    (m,) = b.op("Mul", h, "h0", name="skip", outputs=["m"])
    (d,) = b.op("Sin", b.op("Sin", m, name="n4"), name="n5", outputs=["d"])
    pl.gradients(b, b.op("Sin", d), "x", checkpoint=["h3", "d"])
    assert again(b) == ["again/n0", "again/skip", "again/n4", "again/n1", "again/n2"]
    first, second = starts(b)
    assert first.inputs[0] == "x"
    assert second.inputs[0] == "again/h0"
    assert second.inputs[1] != first.inputs[1]


def test_no_gradient_reads_what_is_not_kept() -> None:
    b, y = sines(9)
    pl.gradients(b, y, "x", checkpoint=["h3", "h6"])
    read = {t for node in b.nodes if node.name.startswith("gradient/") for t in node.inputs}
    assert read.isdisjoint({"h0", "h1", "h2", "h4", "h5"})
    assert read >= {"x", "h3", "h7", "again/h1"}


@pytest.mark.parametrize("kept", [None, [], ["x"]])
def test_without_checkpoints_on_the_way_all_is_kept(kept: Checkpoints) -> None:
    b, y = sines(4)
    pl.gradients(b, y, "x", checkpoint=kept)
    assert not again(b)
    assert not starts(b)


def test_the_last_segment_is_kept_for_its_gradients_come_first() -> None:
    b, y = sines(6)
    pl.gradients(b, y, "x", checkpoint=["h2"])
    assert again(b) == ["again/n0", "again/n1"]


def test_what_no_rule_needs_is_not_computed_again() -> None:
    b = pl.GraphBuilder("linear")
    h = x = b.input("x", "float64", (3,))
    for i in range(4):
        h = b.op("Add", h, x, name=f"n{i}", outputs=[f"h{i}"])[0]
    pl.gradients(b, h, x, checkpoint=["h2"])
    assert not again(b)


def test_shapes_alone_have_nothing_computed_again() -> None:
    b = pl.GraphBuilder("symbols")
    x = b.input("x", "float64", ("n", "m"))
    (h,) = b.op("Sin", x, outputs=["h"])
    (total,) = b.op("ReduceSum", h, np.array([1]), outputs=["total"])
    pl.gradients(b, b.op("Sin", total), x, checkpoint=["total"])
    assert not again(b)
    (shape,) = (node for node in b.nodes if node.op == "Shape" and node.inputs == ("h",))
    assert shape.name.startswith("gradient/")


def test_a_tensor_that_is_differentiated_by_is_kept() -> None:
    b, y = sines(6)
    pl.gradients(b, y, ["x", "h1"], checkpoint=["h4"])
    assert again(b) == ["again/n2", "again/n3", "again/n0"]


def test_a_constant_may_be_differentiated_by() -> None:
    b = pl.GraphBuilder("constant")
    w = b.constant(np.array([1.0, 2.0]), "w")
    h = b.op("Sin", b.op("Mul", b.op("Sin", b.op("Sin", w)), b.input("x", "float64", (2,))))
    y = b.op("Sin", h)
    b.output("kept", pl.gradients(b, y, w))
    b.output("again", pl.gradients(b, y, w, checkpoint=[h]))
    assert again(b)
    found = pl.run(b.build(), {"x": np.array([0.5, -1.0])})
    assert np.array_equal(found["kept"], found["again"])


def test_outputs_that_only_a_gradient_needs_are_asked_of_the_copy() -> None:
    b = pl.GraphBuilder("layers")
    h, scale = b.input("x", "float32", (4, 3)), b.input("scale", "float32", (3,))
    for i in range(3):
        (h,) = b.op("LayerNormalization", h, scale, name=f"n{i}", outputs=[f"h{i}"])
    (h,) = b.op("Sin", h, outputs=["sine"])
    pl.gradients(b, h, scale, checkpoint=["h0", "h2"])
    outputs = {node.name: node.outputs for node in b.nodes}
    assert len(outputs["n1"]) == 1
    assert len(outputs["again/n1"]) == 3


def test_what_has_effects_or_calls_a_function_is_kept() -> None:
    b = pl.GraphBuilder("kept")
    v = b.variable("v", np.ones(3))
    (h,) = b.op("Sin", b.input("x", "float64", (3,)), outputs=["h"])
    held = b.assign(v, h)
    scale = b.call(halved, held)
    (wide,) = b.op("Mul", b.op("Sin", held), scale, outputs=["wide"])
    pl.gradients(b, b.op("Sin", wide), "x", checkpoint=["wide"])
    assert Counter(node.op for node in b.nodes if is_again(node)) == {"Sin": 1}


def test_nodes_with_graphs_are_computed_again() -> None:
    body = pl.GraphBuilder("body")
    h, x = body.input("h", "float64", (2,)), body.input("x", "float64", (2,))
    body.output("next", body.op("Sin", body.op("Add", h, x)))
    b = pl.GraphBuilder("scanned")
    start, steps = b.input("start", "float64", (2,)), b.input("steps", "float64", (3, 2))
    (last,) = b.op("Scan", start, steps, body=body.build(), num_scan_inputs=1, outputs=["last"])
    (sine,) = b.op("Sin", last, outputs=["sine"])
    pl.gradients(b, b.op("Sin", sine), start, checkpoint=["sine"])
    assert [node.op for node in b.nodes if is_again(node)] == ["Scan"]


def test_names_that_are_taken_get_a_number() -> None:
    b, y = sines(4)
    b.op("Neg", "x", name="again/n0", outputs=["again/h0"])
    pl.gradients(b, y, "x", checkpoint=["h2"])
    pl.gradients(b, y, "x", checkpoint=["h2"])
    nodes = {node.name: node for node in b.nodes}
    assert nodes["again/n0.2"].outputs == ("again/h0.2",)
    assert nodes["again/n0.3"].outputs == ("again/h0.3",)


def widths(sizes: Sequence[int]) -> tuple[pl.GraphBuilder, str]:
    """Return a chain of products that write so many numbers, h0, h1, ..."""
    b, last = pl.GraphBuilder("widths"), 1
    h = b.input("x", "float32", (1, 1))
    for i, size in enumerate(sizes):
        (h,) = b.op("MatMul", h, np.ones((last, size), "float32"), outputs=[f"h{i}"])
        last = size
    return b, h


def needed(sizes: Sequence[int], cuts: Collection[int]) -> int:
    """Return the most numbers that are kept at once: a segment, and the checkpoints before it."""
    most, kept, segment = 0, 0, 0
    for place, size in enumerate(sizes):
        segment += size
        if place in cuts or place + 1 == len(sizes):
            most, kept, segment = max(most, kept + segment), kept + size, 0
    return most


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=9))
def test_auto_keeps_least_of_all_ways_to_cut_a_chain(sizes: list[int]) -> None:
    b, y = widths(sizes)
    found = {int(name[1:]) for name in choose_checkpoints(b, [y], ["x"])}
    places = range(len(sizes) - 1)
    ways = chain.from_iterable(combinations(places, n) for n in range(len(sizes)))
    assert needed(sizes, found) == min(needed(sizes, way) for way in ways)


def test_auto_needs_no_more_than_the_root_of_twice_the_length_of_a_chain() -> None:
    b, y = widths([1] * 200)
    assert needed([1] * 200, {int(name[1:]) for name in choose_checkpoints(b, [y], ["x"])}) == 20


def test_auto_cuts_at_the_ends_of_blocks_where_least_leads_across() -> None:
    b = pl.GraphBuilder("shortcuts")
    h = x = b.input("x", "float32", ("n", 4))
    for i in range(6):
        wide = b.op("MatMul", h, np.ones((4, 64), "float32"))
        wide = b.op("Add", wide, b.op("Sin", wide))
        (narrow,) = b.op("MatMul", wide, np.ones((64, 4), "float32"), outputs=[f"narrow{i}"])
        (h,) = b.op("Add", narrow, h if i % 2 else x, outputs=[f"end{i}"])
    kept = choose_checkpoints(b, [h], [x])
    assert kept >= {f"end{i}" for i in range(4)}
    assert not kept & {f"narrow{i}" for i in range(4)}


def test_auto_says_the_same_each_time() -> None:
    built = []
    for _ in range(2):
        b, y = sines(30)
        pl.gradients(b, y, "x", checkpoint="auto")
        built.append(b.nodes)
    assert built[0] == built[1]


def test_checkpoints_may_be_listed_only_once() -> None:
    (b, y), (other, z) = sines(6), sines(6)
    pl.gradients(b, y, "x", checkpoint=["h2", "h4"])
    once: Any = (name for name in ("h2", "h4"))
    pl.gradients(other, z, "x", checkpoint=once)
    assert other.nodes == b.nodes


@pytest.mark.parametrize(
    ("kept", "what"), [(["h1", "nowhere"], "nowhere"), ("h1", "'h1'"), (True, "is True")]
)
def test_a_checkpoint_must_be_a_tensor_and_they_must_be_a_list(kept: Any, what: str) -> None:
    b, y = sines(3)
    with pytest.raises(pl.GraphError, match=what) as caught:
        pl.gradients(b, y, "x", None, kept)
    assert caught.value.fix
    assert len(b.nodes) == 3


def test_what_is_written_out_in_other_operators_reads_copies_too() -> None:
    b = pl.GraphBuilder("sequence")
    h = b.input("x", "float64", (3, 1, 2))
    for i in range(3):
        w, r = (b.constant(np.ones((1, 6, 2)), name=f"{name}{i}") for name in "wr")
        _, last = b.op("GRU", h, w, r, hidden_size=2, name=f"n{i}", outputs=["", f"last{i}"])
        (h,) = b.op("Expand", last, np.array([3, 1, 2]), outputs=[f"h{i}"])
    pl.gradients(b, b.op("Sin", h), "x", checkpoint=["h2"])
    assert "again/n0" in again(b)
    read = {t for node in b.nodes if node.name.startswith("gradient/") for t in node.inputs}
    assert read.isdisjoint({"h0", "h1", "last0", "last1"})
