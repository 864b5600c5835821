"""Damaged cvm models: one of the two kinds of errors or a sound graph, in little memory."""

from __future__ import annotations

import json
from typing import Any

import plait as pl
from cvm_models import convolution_graph, dense_params, dense_symbol
from damage import refusal
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plait.dialects.cvm.files import load_cvm
from plait.dialects.cvm.files.writer import dump_cvm
from plait.dialects.cvm.gas import count_operations

FIXED_COST = 400_000
"""Bytes that loading takes however small the file is."""
PER_BYTE = 100

DENSE = json.dumps(dense_symbol()).encode()
SYMBOL, PARAMS = dump_cvm(convolution_graph())
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.integers(-3, 9)
    | st.floats(allow_nan=False)
    | st.text(max_size=4)
    | st.sampled_from(
        ["data", "w", "cvm_op", "null", "relu", "conv2d", "{}", "(1, 2)", "cvm_1.1.0"]
    )
)
ATTRIBUTES = [
    *("channels", "kernel_size", "strides", "groups", "pool_size"),
    *("shape", "begin", "end", "reps", "axis"),
]
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4), max_leaves=6)


def load_guarded(symbol: bytes, params: bytes) -> None:
    """Load and check, within memory of a small multiple of the files' size."""

    def read() -> None:
        graph = load_cvm(symbol, params).graph
        pl.check(graph)
        count_operations(graph)

    refused = refusal(read, FIXED_COST + PER_BYTE * (len(symbol) + len(params)))
    assert refused is None or (refused.code in (1, 2) and refused.fix)


def spots(data: bytes) -> Any:
    return st.integers(0, len(data) - 1)


@settings(max_examples=150, deadline=None)
@given(spots(DENSE), st.integers(0, 3), st.binary(max_size=3))
def test_a_symbol_with_some_bytes_exchanged(place: int, removed: int, put: bytes) -> None:
    load_guarded(DENSE[:place] + put + DENSE[place + removed :], dense_params())


@settings(max_examples=100, deadline=None)
@given(spots(DENSE), spots(DENSE))
def test_a_symbol_with_a_piece_cut_out(start: int, end: int) -> None:
    load_guarded(DENSE[: min(start, end)] + DENSE[max(start, end) :], dense_params())


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(0, 5), VALUES)
def test_a_symbol_with_one_value_replaced(data: st.DataObject, depth: int, value: Any) -> None:
    root = json.loads(SYMBOL)
    place, key = root, data.draw(st.sampled_from(sorted(root)))
    while isinstance(place[key], list | dict) and place[key] and depth:
        place, depth = place[key], depth - 1
        keys = range(len(place)) if isinstance(place, list) else sorted(place)
        key = data.draw(st.sampled_from(list(keys)))
    place[key] = value
    load_guarded(json.dumps(root).encode(), PARAMS)


@settings(max_examples=150, deadline=None)
@example("max_pool2d", "pool_size", "(0, 0)")
@example("reshape", "shape", "(-4, -1, -1)")
@given(
    st.sampled_from(["conv2d", "max_pool2d", "reshape", "strided_slice", "tile", "repeat", "sum"]),
    st.sampled_from(ATTRIBUTES),
    st.lists(st.integers(-5, 5) | st.integers(-(2**62), 2**62), max_size=4).map(tuple).map(str),
)
def test_a_symbol_with_other_operators_and_attributes(op: str, name: str, text: str) -> None:
    root = json.loads(SYMBOL)
    node = next(i for i, one in enumerate(root["nodes"]) if one["op"] == "cvm_op")
    root["nodes"][node]["attrs"]["func_name"] = op
    del root["nodes"][node]["attrs"]["num_inputs"]
    del root["nodes"][node]["inputs"][2:]
    given_attributes = json.loads(root["attrs"]["op_attrs"][1][node]) if op == "conv2d" else {}
    root["attrs"]["op_attrs"][1][node] = json.dumps({**given_attributes, name: text})
    load_guarded(json.dumps(root).encode(), PARAMS)


@settings(max_examples=150, deadline=None)
@given(spots(dense_params()), st.integers(0, 9), st.binary(max_size=9))
def test_parameters_with_some_bytes_exchanged(place: int, removed: int, put: bytes) -> None:
    params = dense_params()
    load_guarded(DENSE, params[:place] + put + params[place + removed :])


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=200), st.binary(max_size=200))
def test_bytes_that_are_no_model_at_all(symbol: bytes, params: bytes) -> None:
    load_guarded(symbol, params)
    load_guarded(DENSE, params)
