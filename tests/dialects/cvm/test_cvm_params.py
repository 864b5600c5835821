"""Each rule of cvm's parameter files, with the kind of error that breaking it is."""

from __future__ import annotations

import json
import struct
import tracemalloc
from typing import Any

import numpy as np
import plait as pl
import pytest
from cvm_models import changed, dense_symbol
from plait.dialects.cvm.files import load_cvm
from plait.dialects.cvm.files.params import ARRAY_MAGIC, LIST_MAGIC, read_params, write_params
from plait.graph.values.errors import PlaitError

LOGIC, RUNTIME = 1, 2
W = np.arange(-6, 6, dtype=np.int8).reshape(3, 4)
SYMBOL = json.dumps(dense_symbol()).encode()


def array_bytes(**changes: Any) -> bytes:
    """Return a stored array of 2 × 3 int32, fields changed by name."""
    fields = {
        "magic": ARRAY_MAGIC,
        "device": 1,
        "rank": 2,
        "kind": 0,
        "bits": 32,
        "lanes": 1,
        "shape": (2, 3),
        "nbytes": 24,
        "values": bytes(range(24)),
        **changes,
    }
    head = struct.pack(
        "<QQiiiBBH",
        *(fields["magic"], 0, fields["device"], 0, fields["rank"]),
        *(fields["kind"], fields["bits"], fields["lanes"]),
    )
    shape = struct.pack(f"<{len(fields['shape'])}q", *fields["shape"])
    return head + shape + struct.pack("<q", fields["nbytes"]) + bytes(fields["values"])


def listing(names: list[bytes], *arrays: bytes, magic: int = LIST_MAGIC, count: int = -1) -> bytes:
    parts = [struct.pack("<QQQ", magic, 0, len(names))]
    parts += [struct.pack("<Q", len(name)) + name for name in names]
    parts.append(struct.pack("<Q", len(names) if count < 0 else count))
    return b"".join((*parts, *arrays))


def refusal(data: bytes) -> PlaitError:
    with pytest.raises(PlaitError) as caught:
        read_params(data)
    return caught.value


def test_arrays_come_back_as_they_were_written() -> None:
    arrays: dict[str, Any] = {"w": W, "ünder": np.array([[2**31 - 1, -(2**31)]], np.int32)}
    read = read_params(write_params(arrays))
    assert list(read) == list(arrays)
    for name, array in arrays.items():
        assert read[name].dtype == array.dtype
        assert np.array_equal(read[name], array)


def test_the_layout_is_that_of_cvm() -> None:
    assert write_params({"w": np.arange(6, dtype=np.int32).reshape(2, 3)}) == listing(
        [b"w"], array_bytes(values=np.arange(6, dtype="<i4").tobytes())
    )


def test_other_dtypes_cannot_be_written() -> None:
    with pytest.raises(pl.GraphError, match="float32"):
        write_params({"w": np.zeros(2, np.float32)})


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(listing([], magic=1), id="magic"),
        pytest.param(listing([b"w"], array_bytes(), count=2), id="count"),
        pytest.param(listing([b"w", b"w"], array_bytes(), array_bytes()), id="one name twice"),
        pytest.param(listing([b"\xff"], array_bytes()), id="no text"),
        pytest.param(listing([b"w"], array_bytes()) + b"\0", id="bytes behind"),
        pytest.param(struct.pack("<QQQ", LIST_MAGIC, 0, 2**60), id="names without end"),
        pytest.param(struct.pack("<QQQQ", LIST_MAGIC, 0, 1, 2**60), id="a name without end"),
        pytest.param(listing([b"w"], array_bytes(bits=16, nbytes=12)), id="int16"),
        pytest.param(listing([b"w"], array_bytes(kind=2)), id="float"),
        pytest.param(listing([b"w"], array_bytes(lanes=2)), id="lanes"),
        pytest.param(listing([b"w"], array_bytes(rank=7, shape=(1,) * 7)), id="rank"),
        pytest.param(listing([b"w"], array_bytes(rank=-1)), id="negative rank"),
    ],
)
def test_a_wrong_listing_or_dtype_is_a_mistake_of_the_model(data: bytes) -> None:
    assert refusal(data).code == LOGIC


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(array_bytes(magic=1), id="magic"),
        pytest.param(array_bytes(device=2), id="device"),
        pytest.param(array_bytes(nbytes=23), id="size"),
        pytest.param(array_bytes(nbytes=-24), id="negative size"),
        pytest.param(array_bytes(shape=(0, 3), nbytes=0), id="empty"),
        pytest.param(array_bytes(shape=(-2, -3)), id="negative shape"),
        pytest.param(array_bytes(shape=(2**40, 2**20), nbytes=2**62), id="values without end"),
        pytest.param(array_bytes()[:-1], id="cut off"),
        pytest.param(array_bytes()[:20], id="cut off in the head"),
    ],
)
def test_a_damaged_array_is_a_runtime_failure(array: bytes) -> None:
    assert refusal(listing([b"w"], array)).code == RUNTIME


@pytest.mark.parametrize("claim", [2**30, 2**60])
def test_no_length_is_believed_before_its_bytes_are_seen(claim: int) -> None:
    data = listing([b"w"], array_bytes(shape=(1, claim), nbytes=4 * claim))
    tracemalloc.start()
    try:
        refusal(data)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def loading_refusal(params: bytes, symbol: bytes = SYMBOL) -> PlaitError:
    with pytest.raises(PlaitError) as caught:
        load_cvm(symbol, params)
    return caught.value


def test_parameters_become_int32_constants_with_their_precision() -> None:
    graph = load_cvm(SYMBOL, write_params({"w": W})).graph
    assert graph.constants["w"].dtype == np.int32
    assert graph.constants["w"].tolist() == W.tolist()
    assert not graph.constants["w"].flags.writeable
    assert graph.precisions == {"data": 8, "w": 8}


def test_a_parameter_that_is_missing_is_a_mistake_of_the_model() -> None:
    error = loading_refusal(write_params({}))
    assert error.code == LOGIC
    assert "w have not been loaded" in error.what


def test_a_parameter_nobody_asked_for_is_a_runtime_failure() -> None:
    assert loading_refusal(write_params({"w": W, "v": W})).code == RUNTIME


@pytest.mark.parametrize("shape", [(4, 3), (12,), (1, 3, 4)])
def test_a_parameter_must_have_its_variables_shape(shape: tuple[int, ...]) -> None:
    assert loading_refusal(write_params({"w": W.reshape(shape)})).code == LOGIC


@pytest.mark.parametrize(
    ("value", "refused"), [(127, False), (-127, False), (-128, True), (300, True)]
)
def test_a_parameter_beyond_its_precision_is_a_mistake_of_the_model(
    value: int, refused: bool
) -> None:
    large = W.astype(np.int32)
    large[1, 2] = value
    params = write_params({"w": large})
    if refused:
        assert loading_refusal(params).code == LOGIC
    else:
        assert load_cvm(SYMBOL, params).graph.constants["w"][1, 2] == value


def test_the_data_may_stand_among_the_parameters_and_is_set_by_each_run_anyway() -> None:
    data = np.full((2, 4), 999, np.int32)
    model = load_cvm(SYMBOL, write_params({"data": data, "w": W}))
    assert model.graph.inputs == ("data",)


def test_a_model_without_data_is_a_runtime_failure() -> None:
    symbol = changed(dense_symbol(), ("nodes.0.name", "image"))
    assert (
        loading_refusal(write_params({"image": np.ones((2, 4), np.int8), "w": W}), symbol).code
        == RUNTIME
    )
