"""Damaged ONNX files: a PlaitError or a sound graph, in little time and memory."""

from __future__ import annotations

import itertools
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from damage import exchange_bytes, refusal
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_models import model, node
from plait import check
from plait.graph.formats.onnx import load_onnx
from plait.graph.values.errors import ParseError


@cache
def sound() -> bytes:
    nodes = [
        node("Constant", "", "two", value_ints=[2, -1]),
        node("Conv", "x w", "features", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Clip", "features", "bounded", min=0.0, max=6.0),
        node("Reshape", "bounded two", "flat"),
        node("Softmax", "flat", "y"),
        node("Identity", "two", "z"),
    ]
    w = np.ones((2, 3, 3, 3), "float32")
    inputs = {"x": ("float32", (1, 3, "h", 8))}
    proto = model(nodes, inputs, ["y", "z"], {"w": w}, opset=9)
    return proto.SerializeToString()  # type: ignore[no-any-return]


def load_guarded(data: bytes) -> None:
    """Load and check, within memory of a small multiple of the file's size."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(data)
        refused = refusal(lambda: check(load_onnx(path)), 4_000_000 + 100 * len(data))
    assert refused is None or (refused.what and refused.at and refused.fix)


def test_the_model_under_attack_is_sound() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(sound())
        assert load_onnx(path).outputs == ("y", "z")


@settings(max_examples=250)
@given(st.data())
def test_changed_bytes_raise_or_load_a_sound_graph(data: st.DataObject) -> None:
    load_guarded(exchange_bytes(data, sound(), 4))


@settings(max_examples=100)
@given(st.integers(0, len(sound()) - 1))
def test_truncated_files_raise_or_load_a_sound_graph(length: int) -> None:
    load_guarded(sound()[:length])


def attacked(message: Any, data: st.DataObject) -> None:
    """Change one field of a message, or of one somewhere inside of it."""
    field, value = data.draw(st.sampled_from(message.ListFields()))
    if field.type == field.TYPE_MESSAGE:
        attacked(data.draw(st.sampled_from(list(value))) if field.is_repeated else value, data)
    elif field.is_repeated:
        index = data.draw(st.integers(0, len(value) - 1))
        value[index] = data.draw(replacement(field))
    else:
        setattr(message, field.name, data.draw(replacement(field)))


def replacement(field: Any) -> st.SearchStrategy[Any]:
    if field.type == field.TYPE_STRING:
        names = ["", "x", "w", "y", "two", "axes", "Add", "Relu", "Constant", "Identity", "Softmax"]
        return st.sampled_from(names)
    if field.type == field.TYPE_BYTES:
        return st.binary(max_size=9)
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return st.floats(width=32)
    if field.type == field.TYPE_ENUM:
        return st.sampled_from([value.number for value in field.enum_type.values])
    if field.type == field.TYPE_INT32:
        return st.integers(-(2**31), 2**31 - 1) | st.integers(0, 30)
    if field.type in (field.TYPE_UINT64, field.TYPE_FIXED64):
        return st.integers(0, 2**64 - 1)
    return st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 30)


@settings(max_examples=300)
@given(st.data())
def test_changed_fields_raise_or_load_a_sound_graph(data: st.DataObject) -> None:
    proto = onnx.ModelProto.FromString(sound())
    for _ in range(data.draw(st.integers(1, 2))):
        attacked(proto, data)

    load_guarded(proto.SerializeToString())


@given(st.binary(max_size=200))
def test_any_bytes_raise(data: bytes) -> None:
    load_guarded(data)
    with tempfile.TemporaryDirectory() as folder, pytest.raises(ParseError):
        path = Path(folder) / "model.onnx"
        path.write_bytes(data)
        load_onnx(path)


def test_a_sum_of_sums_does_not_grow_without_end() -> None:
    """Lengths double at each node, and with them, were it written out, the symbol for them."""
    names = ["x", *(f"t{i}" for i in range(200)), "y"]
    nodes = [node("Concat", f"{a} {a}", b, axis=0) for a, b in itertools.pairwise(names)]
    load_guarded(model(nodes, {"x": ("float32", ("n",))}).SerializeToString())
