from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as arrays_of
import numpy as np
import onnx
import pytest
from arrays import any_bits
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from onnx_models import AnyArray, model, node, written
from plait import Graph
from plait.graph.formats.onnx import load_onnx
from plait.graph.formats.onnx.tensors import ELEMENT_TYPES, TensorReader
from plait.graph.values.dtypes import EXTENSIONS, dtype_of, is_extension
from plait.graph.values.errors import ParseError

SHAPES = arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
READER = TensorReader(Path("model.onnx"))


def read(tensor: Any) -> AnyArray:
    return READER.read(tensor, f"tensor {tensor.name!r}")  # type: ignore[no-any-return]


@st.composite
def arrays(draw: st.DrawFn) -> AnyArray:
    dtype = draw(st.sampled_from(sorted(ELEMENT_TYPES.values())))
    drawn: AnyArray = draw(any_bits(dtype, SHAPES))
    return drawn


@given(arrays())
def test_raw_bytes_are_read_as_they_are(array: AnyArray) -> None:
    found = read(numpy_helper.from_array(array, "t"))

    assert (found.dtype, found.shape, found.tobytes()) == (
        array.dtype,
        array.shape,
        array.tobytes(),
    )
    assert not found.flags.writeable


@given(arrays())
def test_typed_fields_are_read_as_they_are(array: AnyArray) -> None:
    element_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    if array.dtype.itemsize == 1 and is_extension(array.dtype):
        assume(not np.isinf(array.astype("float32")).any())  # make_tensor makes them finite
    # make_tensor stores elements one by one in the field of their type.
    tensor = helper.make_tensor("t", element_type, array.shape, array.reshape(-1))
    assert not tensor.HasField("raw_data")

    found = read(tensor)
    assert found.dtype == array.dtype
    if is_extension(found.dtype):  # numpy's tests know only the NaNs of numpy's own dtypes
        found, array = found.astype("float32"), array.astype("float32")
    np.testing.assert_array_equal(found, array, strict=True)


def test_every_element_type_that_numpy_has_is_read() -> None:
    numeric = set(onnx.TensorProto.DataType.values()) - {onnx.TensorProto.STRING, 0}
    known = {
        number
        for number in numeric
        if helper.tensor_dtype_to_np_dtype(number).type.__module__ == "numpy"
    }
    small = {number for number, name in ELEMENT_TYPES.items() if name in EXTENSIONS}
    assert set(ELEMENT_TYPES) - small == known
    for number, name in ELEMENT_TYPES.items():
        assert helper.tensor_dtype_to_np_dtype(number) == dtype_of(name)


@pytest.mark.parametrize("name", ["INT4", "STRING", "FLOAT4E2M1", "UNDEFINED"])
def test_other_element_types_are_refused_by_name(name: str) -> None:
    tensor = onnx.TensorProto(name="weights", data_type=onnx.TensorProto.DataType.Value(name))
    with pytest.raises(ParseError, match=f"of type {name} are not supported") as caught:
        read(tensor)
    assert caught.value.at == "tensor 'weights', model.onnx"
    assert "float16" in str(caught.value.fix)


def tensor_of(dims: list[int], **fields: Any) -> Any:
    return onnx.TensorProto(name="t", data_type=onnx.TensorProto.FLOAT, dims=dims, **fields)


@pytest.mark.parametrize("dims", [[3], [], [2**62, 2**62], [2, 0], [0]])
def test_raw_bytes_of_another_length_are_refused(dims: list[int]) -> None:
    with pytest.raises(ParseError, match="there are 8") as caught:
        read(tensor_of(dims, raw_data=bytes(8)))
    assert "tensor 't'" in str(caught.value.at)


@pytest.mark.parametrize("dims", [[3], [], [2**62, 2**62], [0]])
def test_fields_of_another_length_are_refused(dims: list[int]) -> None:
    with pytest.raises(ParseError, match="has 2 entries in float_data"):
        read(tensor_of(dims, float_data=[1, 2]))


def test_a_complex_number_needs_both_parts() -> None:
    tensor = onnx.TensorProto(
        name="t", data_type=onnx.TensorProto.COMPLEX64, dims=[1], float_data=[1, 2, 3]
    )
    with pytest.raises(ParseError, match="has 3 entries"):
        read(tensor)


def test_data_in_a_field_of_another_type_is_missing_data() -> None:
    with pytest.raises(ParseError, match="has 0 entries in float_data"):
        read(tensor_of([2], double_data=[1, 2]))


def test_a_negative_length_is_refused() -> None:
    with pytest.raises(ParseError, match=r"cannot have the shape \[-1, -2\]"):
        read(tensor_of([-1, -2], raw_data=bytes(8)))


def test_part_of_a_tensor_is_refused() -> None:
    with pytest.raises(ParseError, match="cannot have the shape"):
        read(tensor_of([2], raw_data=bytes(8), segment=onnx.TensorProto.Segment(begin=0, end=2)))


def test_more_dimensions_than_numpy_has_are_refused() -> None:
    with pytest.raises(ParseError, match="dimension"):
        read(tensor_of([1] * 70, raw_data=bytes(4)))


def test_no_entries_in_lengths_that_numpy_does_not_count_are_refused() -> None:
    tensor = onnx.TensorProto(name="t", data_type=onnx.TensorProto.FLOAT, dims=[0, 2**62, 2**62])
    with pytest.raises(ParseError, match="too big"):
        read(tensor)


def test_a_boolean_that_is_neither_true_nor_false_is_refused() -> None:
    tensor = onnx.TensorProto(name="t", data_type=onnx.TensorProto.BOOL, dims=[2], raw_data=b"\1\2")
    with pytest.raises(ParseError, match="neither 0 nor 1"):
        read(tensor)


def external(array: AnyArray, **entries: str) -> Any:
    """Return a model that adds a tensor whose data lies beside it."""
    proto = model([node("Add", "x w", "y")], {"x": (array.dtype.name, array.shape)})
    tensor = proto.graph.initializer.add(
        name="w",
        data_type=helper.np_dtype_to_tensor_dtype(array.dtype),
        dims=array.shape,
        data_location=onnx.TensorProto.EXTERNAL,
    )
    for key, value in {"location": "weights.bin", **entries}.items():
        tensor.external_data.add(key=key, value=value)
    return proto


def load(proto: Any, folder: Path) -> Graph:
    return load_onnx(written(proto, folder))


WEIGHTS = np.arange(6, dtype=np.float32)


def test_data_beside_the_model_is_used_where_it_was_read_to(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(bytes(64) + WEIGHTS.tobytes())
    w = load(external(WEIGHTS, offset="64", length="24"), tmp_path).constants["w"]

    np.testing.assert_array_equal(w, WEIGHTS, strict=True)
    assert not w.flags.owndata
    assert not w.flags.writeable


def test_a_file_of_several_tensors_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(WEIGHTS.tobytes())
    proto = external(WEIGHTS)
    proto.graph.initializer.append(proto.graph.initializer[0])
    proto.graph.initializer[1].name = "v"
    proto.graph.node[0].input[0] = "v"
    constants = load(proto, tmp_path).constants

    assert np.shares_memory(constants["v"], constants["w"])


def test_data_at_an_odd_offset_is_copied_to_an_aligned_place(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"?" + WEIGHTS.tobytes())
    w = load(external(WEIGHTS, offset="1"), tmp_path).constants["w"]

    np.testing.assert_array_equal(w, WEIGHTS)
    assert w.flags.aligned
    assert not w.flags.writeable


def test_data_beside_the_model_may_be_deleted_after_loading(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(WEIGHTS.tobytes())
    w = load(external(WEIGHTS), tmp_path).constants["w"]
    (tmp_path / "weights.bin").unlink()

    np.testing.assert_array_equal(w, WEIGHTS)


def test_an_empty_tensor_needs_no_file(tmp_path: Path) -> None:
    w = load(external(np.empty((0, 2), "float32")), tmp_path).constants["w"]

    assert w.shape == (0, 2)


def test_onnx_writes_what_is_read(tmp_path: Path) -> None:
    proto = model([node("Add", "x w", "y")], {"x": ("float32", (6,))}, constants={"w": WEIGHTS})
    onnx.save(
        proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )

    np.testing.assert_array_equal(load_onnx(tmp_path / "m.onnx").constants["w"], WEIGHTS)


@pytest.mark.parametrize(
    "location",
    [
        "../weights.bin",
        "/etc/passwd",
        "sub/../../weights.bin",
        "",
        "..",
        "a\0b",
        "*/_ORT_MEM_ADDR_/*/..",
    ],
)
def test_data_outside_the_models_folder_is_refused(location: str, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(WEIGHTS.tobytes())
    inner = tmp_path / "inner"
    inner.mkdir()
    with pytest.raises(ParseError, match="outside the model's folder") as caught:
        load(external(WEIGHTS, location=location), inner)
    assert "tensor 'w'" in str(caught.value.at)


def test_a_link_out_of_the_models_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(WEIGHTS.tobytes())
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "weights.bin").symlink_to("../weights.bin")
    with pytest.raises(ParseError, match="outside the model's folder"):
        load(external(WEIGHTS), inner)


def test_a_linked_folder_is_no_way_out_either(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(WEIGHTS.tobytes())
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "sub").symlink_to("..")
    with pytest.raises(ParseError, match="outside the model's folder"):
        load(external(WEIGHTS, location="sub/weights.bin"), inner)


def test_a_linked_model_finds_its_data_where_it_really_lies(tmp_path: Path) -> None:
    """Model caches link both files into a folder of blobs."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    written(external(WEIGHTS), blobs, "1a2b")
    (blobs / "3c4d").write_bytes(WEIGHTS.tobytes())
    (snapshot / "model.onnx").symlink_to("../blobs/1a2b")
    (snapshot / "weights.bin").symlink_to("../blobs/3c4d")

    np.testing.assert_array_equal(load_onnx(snapshot / "model.onnx").constants["w"], WEIGHTS)


def test_data_in_a_folder_below_the_model_is_found(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "weights.bin").write_bytes(WEIGHTS.tobytes())

    graph = load(external(WEIGHTS, location="sub/weights.bin"), tmp_path)
    np.testing.assert_array_equal(graph.constants["w"], WEIGHTS)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"offset": "4"}, "needs 24 bytes at offset 4, there are 24"),
        ({"offset": "-8"}, "needs 24 bytes at offset -8"),
        ({"offset": "99999999999999999999"}, "at offset 99999999999999999999"),
        ({"offset": "four"}, "external data: invalid literal"),
        ({"offset": "9" * 5000}, "external data: "),
        ({"length": "20"}, "20 bytes of external data cannot be float32"),
        ({"length": "-24"}, "-24 bytes of external data cannot be"),
    ],
)
def test_offsets_and_lengths_are_checked(
    entries: dict[str, str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "weights.bin").write_bytes(WEIGHTS.tobytes())
    with pytest.raises(ParseError, match=message):
        load(external(WEIGHTS, **entries), tmp_path)


def test_dimensions_beyond_the_data_are_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(WEIGHTS.tobytes())
    proto = external(WEIGHTS)
    proto.graph.initializer[0].dims[:] = [2**40, 2**40]
    with pytest.raises(ParseError, match="there are 24"):
        load(proto, tmp_path)


def test_data_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match=r"'weights\.bin': there is no such file") as caught:
        load(external(WEIGHTS), tmp_path)
    assert caught.value.fix == "put the file beside the model"


def test_data_that_is_empty_a_folder_or_a_pipe_is_named(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.touch()
    with pytest.raises(ParseError, match=r"'weights\.bin': .*empty"):
        load(external(WEIGHTS), tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(ParseError, match=r"'weights\.bin': this is a folder"):
        load(external(WEIGHTS), tmp_path)
    path.rmdir()
    os.mkfifo(path)  # opening it would wait for a writer
    with pytest.raises(ParseError, match=r"'weights\.bin': this is not an ordinary file"):
        load(external(WEIGHTS), tmp_path)
