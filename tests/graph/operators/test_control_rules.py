"""Shape rules of If, Loop and Scan, by those of the graphs inside of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
import pytest
from nested_graphs import doubling_body, growing_body, running_sum_body, scaled
from plait.graph.core.nested import infer_results, merge_specs, walk_nodes
from plait.graph.operators.control import repeats
from plait.graph.values.dims import UNKNOWN
from plait.graph.values.tensor import TensorSpec


def loop(b: pl.GraphBuilder, state: str, body: object, outputs: int = 1) -> Any:
    trips = b.input("trips", "int64", ())
    return b.op("Loop", trips, np.bool_(True), state, name="loop", outputs=outputs, body=body)


def test_a_branch_sees_the_shapes_it_is_handed() -> None:
    then, other = scaled("then", 2), scaled("else", 3)
    b = pl.GraphBuilder("g")
    cond, x = b.input("cond", "bool", ()), b.input("x", "float32", (7,))
    y = b.op("If", cond, x, then_branch=then, else_branch=other)
    b.output("y", y)
    assert b.build().tensors["y"] == TensorSpec("float32", (7,))


def test_the_symbols_of_the_graph_around_go_through() -> None:
    graph = scaled("then", 2)
    assert infer_results(graph, [TensorSpec("float32", ("batch",))])[0].shape == ("batch",)


def test_symbols_of_the_inside_are_unknown_outside() -> None:
    b = pl.GraphBuilder("found")
    b.output("places", b.op("NonZero", b.input("x", "float32", ("n",))))
    (spec,) = infer_results(b.build(), [TensorSpec("float32", (4,))])
    assert spec.shape == (1, UNKNOWN)


def test_a_state_that_keeps_its_shape_has_it_after_the_loop() -> None:
    b = pl.GraphBuilder("g")
    last, rows = loop(b, b.input("x", "float32", (3,)), body=doubling_body(), outputs=2)
    b.output("last", last)
    b.output("rows", rows)
    graph = b.build()
    assert graph.tensors["last"].shape == (3,)
    assert graph.tensors["rows"].rank == 2
    assert graph.tensors["rows"].shape is not None
    assert graph.tensors["rows"].shape[1] == 3


def test_a_state_that_grows_has_an_unknown_length() -> None:
    b = pl.GraphBuilder("g")
    b.output("y", loop(b, b.input("x", "float32", (3,)), body=growing_body()))
    (dim,) = b.build().tensors["y"].shape or ()
    assert isinstance(dim, str)


def test_a_loop_of_known_length_stacks_that_many_rows() -> None:
    b = pl.GraphBuilder("g")
    x = b.input("x", "float32", (3,))
    _, rows = b.op("Loop", np.int64(5), None, x, body=doubling_body(), outputs=2)
    b.output("rows", rows)
    assert b.build().tensors["rows"].shape == (5, 3)


def test_scanned_inputs_give_the_length_of_what_is_stacked() -> None:
    b = pl.GraphBuilder("g")
    x = b.input("x", "float32", (2, "time"))
    state = np.zeros(2, np.float32)
    _, squares = b.op(
        "Scan", state, x, body=running_sum_body(), num_scan_inputs=1, scan_input_axes=[1], outputs=2
    )
    b.output("squares", squares)
    assert b.build().tensors["squares"].shape == ("time", 2)


def test_scanned_inputs_of_different_lengths_are_refused() -> None:
    b = pl.GraphBuilder("pair")
    p, q = b.input("p", "float32", ("n",)), b.input("q", "float32", ("n",))
    b.output("y", b.op("Add", p, q))
    outer = pl.GraphBuilder("g")
    inputs = [outer.input(name, "float32", (n, 2)) for name, n in (("p", 3), ("q", 4))]
    with pytest.raises(pl.ShapeError, match="lengths 3 and 4"):
        outer.op("Scan", *inputs, body=b.build(), num_scan_inputs=2)


def test_a_body_with_too_few_outputs_is_refused() -> None:
    b = pl.GraphBuilder("poor")
    b.input("step", "int64", ())
    b.input("state", "float32", ("n",))
    b.output("goes_on", b.op("Identity", b.input("going", "bool", ())))
    outer = pl.GraphBuilder("g")
    with pytest.raises(pl.ShapeError, match="1 outputs, and 1 states"):
        loop(outer, outer.input("x", "float32", (3,)), body=b.build())


def test_a_body_that_is_no_graph_is_refused() -> None:
    outer = pl.GraphBuilder("g")
    with pytest.raises(pl.OperatorError, match="must be a graph"):
        loop(outer, outer.input("x", "float32", (3,)), body="body")


def test_merged_specs_keep_what_both_have() -> None:
    a, b = TensorSpec("float32", (2, 3)), TensorSpec("float32", (2, 4))
    assert merge_specs(a, b, "it").shape == (2, UNKNOWN)
    assert merge_specs(a, TensorSpec("float32", (2,)), "it").shape is None


def test_a_condition_that_goes_through_repeats() -> None:
    assert repeats(doubling_body())
    assert not repeats(doubling_body(limit=3))


def test_all_nodes_are_found_by_their_paths() -> None:
    b = pl.GraphBuilder("g")
    x = b.input("x", "float32", (3,))
    inner = scaled("then", 2)
    b.output(
        "y",
        b.op("If", b.input("c", "bool", ()), x, then_branch=inner, else_branch=inner, name="if"),
    )
    assert [path for path, _, _ in walk_nodes(b.build())] == ["if", "if/scale", "if/scale"]


def test_lengths_of_tensors_named_alike_inside_and_outside_are_told_apart() -> None:
    b = pl.GraphBuilder("inner")
    x, taken = b.input("x", "float32", ("n",)), b.input("taken", "float32", ("m",))
    b.output("places", b.op("NonZero", x, name="find"))
    b.output("same", b.op("Neg", taken))
    branch = b.build()
    b = pl.GraphBuilder("outer")
    cond, x = b.input("cond", "bool", ()), b.input("x", "float32", ("n",))
    found = b.op("GatherND", x, b.op("Transpose", b.op("NonZero", x, name="find"), perm=[1, 0]))
    places, same = b.op("If", cond, x, found, then_branch=branch, else_branch=branch, outputs=2)
    b.output("places", places)
    b.output("same", same)
    tensors = b.build().tensors
    assert tensors["same"].shape == tensors[found].shape
    assert tensors["places"].shape != tensors["find"].shape


def test_a_body_puts_out_one_condition() -> None:
    b = pl.GraphBuilder("body")
    b.input("step", "int64", ())
    b.input("going", "bool", ())
    b.output("goes_on", b.op("Greater", b.input("x", "float32", (2,)), np.float32(0)))
    b.output("next", b.op("Neg", "x"))
    body = b.build()
    b = pl.GraphBuilder("looping")
    x, trips = b.input("x", "float32", (2,)), b.input("trips", "int64", ())
    with pytest.raises(pl.ShapeError, match=r"body puts out is bool\[2\], not one value"):
        b.op("Loop", trips, None, x, body=body)
