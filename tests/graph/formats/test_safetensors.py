"""Safetensors files: what the package of that name writes is read here, and the reverse."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from arrays import AnyArray, any_bits, shapes
from damage import exchange_bytes, refusal
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.graph.formats.safetensors import DTYPES, pack_weights, read_weights
from plait.graph.values.errors import GraphError, ParseError

safetensors = pytest.importorskip("safetensors")
reference = pytest.importorskip("safetensors.numpy")

NAMES = st.text(st.characters(codec="utf-8"), max_size=6).filter(lambda n: n != "__metadata__")


@st.composite
def weights(draw: st.DrawFn, dtypes: list[str]) -> dict[str, AnyArray]:
    names = draw(st.lists(NAMES, max_size=5, unique=True))
    return {name: draw(any_bits(draw(st.sampled_from(dtypes)), draw(shapes()))) for name in names}


def dumped(arrays: dict[str, Any], metadata: dict[str, str] | None = None) -> bytes:
    return b"".join(pack_weights(arrays, metadata or {}))


def file_of(header: Any, blob: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + blob


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def assert_same(ours: dict[str, AnyArray], theirs: dict[str, AnyArray]) -> None:
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert (array.dtype, array.shape) == (theirs[name].dtype, theirs[name].shape)
        assert array.tobytes() == theirs[name].tobytes()


@settings(max_examples=60)
@given(weights(sorted(DTYPES.values())), st.dictionaries(NAMES, NAMES, max_size=2))
def test_what_is_written_is_read_bit_for_bit(
    arrays: dict[str, AnyArray], metadata: dict[str, str]
) -> None:
    read, text = read_weights(dumped(arrays, metadata))

    assert_same(read, arrays)
    assert text == metadata
    assert not any(array.flags.writeable for array in read.values())


@settings(max_examples=60)
@given(weights(sorted(DTYPES.values())))
def test_the_reference_reads_what_is_written_here(arrays: dict[str, AnyArray]) -> None:
    read = dict(safetensors.deserialize(dumped(arrays)))

    assert read.keys() == arrays.keys()
    for name, array in arrays.items():
        assert DTYPES[read[name]["dtype"]] == array.dtype.name
        assert tuple(read[name]["shape"]) == array.shape
        assert read[name]["data"] == array.tobytes()


@settings(max_examples=60)
@given(weights(sorted(DTYPES.values())))
def test_what_the_reference_writes_is_read_here(arrays: dict[str, AnyArray]) -> None:
    assert_same(read_weights(reference.save(arrays, {"format": "pt"}))[0], arrays)


def test_wide_dtypes_come_first_so_that_nothing_is_copied_when_read() -> None:
    given = {"a": np.ones(3, "uint8"), "b": np.ones(2, "float64"), "c": np.ones(1, "int16")}
    data = np.frombuffer(dumped(given), np.uint8)

    assert all(np.shares_memory(array, data) for array in read_weights(data.data)[0].values())


def test_an_array_at_an_odd_place_is_copied_to_be_aligned() -> None:
    header = {"a": entry("U8", (1,), (0, 1)), "b": entry("F32", (1,), (1, 5))}
    arrays, _ = read_weights(file_of(header, b"\x07" + np.float32(1.5).tobytes()))

    assert (arrays["b"][0], arrays["b"].flags.aligned, arrays["b"].flags.writeable) == (
        1.5, True, False
    )  # fmt: skip


def test_arrays_of_any_order_in_memory_are_written_by_their_values() -> None:
    given = np.arange(12, dtype=">i4").reshape(3, 4).T[::2]
    assert read_weights(dumped({"w": given}))[0]["w"].tolist() == given.tolist()


def test_a_file_that_was_read_may_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    pl.save_weights({"w": np.arange(4)}, path)
    before = pl.load_weights(path)
    pl.save_weights({"w": np.zeros(4)}, path)

    assert before["w"].tolist() == [0, 1, 2, 3]
    assert pl.load_weights(path)["w"].tolist() == [0, 0, 0, 0]
    assert [file.name for file in tmp_path.iterdir()] == ["w.safetensors"]


@pytest.mark.parametrize(
    ("arrays", "metadata", "message"),
    [
        ({"w": np.ones(2, "complex128")}, {}, "hold no complex128"),
        ({"w": np.array(["text"])}, {}, "hold no str"),
        ({"__metadata__": np.ones(2)}, {}, "cannot be an array's name"),
        ({3: np.ones(2)}, {}, "3 cannot be an array's name"),
        ({"\ud800": np.ones(2)}, {}, "a name cannot be written"),
        ({}, {"step": 3}, "metadata is text"),
    ],
)
def test_what_has_no_place_in_a_file_is_refused(arrays: Any, metadata: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message) as caught:
        dumped(arrays, metadata)
    assert caught.value.fix


def test_what_is_refused_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(GraphError):
        pl.save_weights({"w": np.ones(1, "complex128")}, tmp_path / "w.safetensors")
    assert list(tmp_path.iterdir()) == []


DAMAGED = {
    "nothing at all": (b"", "not a safetensors"),
    "another file": (b"PK\3\4" * 9, "not a safetensors"),
    "a length beyond the end": (struct.pack("<Q", 99) + b"{}", "cut short"),
    "a length beyond all reason": (struct.pack("<Q", 2**63) + b"{}", "claims 9223372036854775808"),
    "no JSON": (file_of(b'{"w": '), "header is damaged"),
    "no text": (file_of(b'{"\xff": 1}'), "header is damaged"),
    "deep JSON": (file_of(b'{"w":' + b"[" * 100_000), "header is damaged"),
    "a number of many digits": (file_of(b'{"w":' + b"9" * 5000 + b"}"), "header is damaged"),
    "not a number": (file_of(b'{"w": NaN}'), "NaN is not a number"),
    "a name twice": (file_of(b'{"w": 1, "w": 1}'), "given twice"),
    "metadata of numbers": (file_of({"__metadata__": {"step": 1}}), "metadata is not text"),
    "metadata of nothing": (file_of({"__metadata__": None}), "metadata is not text"),
    "an entry that is none": (file_of({"w": 3}), "not all there"),
    "no shape": (file_of({"w": {"dtype": "F32", "data_offsets": [0, 8]}}), "not all there"),
    "a negative length": (file_of({"w": entry(shape=(-1, -2))}), "not all there"),
    "a length that is none": (file_of({"w": entry(shape=(True,))}), "not all there"),
    "a fraction": (file_of({"w": entry(shape=(2.0,))}), "not all there"),
    "one offset": (file_of({"w": entry(offsets=(0,))}), "1 offsets"),
    "an unknown dtype": (file_of({"w": entry("F4")}), "its dtype is 'F4'"),
    "many dimensions": (file_of({"w": entry(shape=[1] * 65)}), "65 dimensions"),
    "too few bytes": (file_of({"w": entry(offsets=(0, 4))}, bytes(4)), "0 to 4 cannot hold"),
    "backwards": (file_of({"w": entry(offsets=(8, 0))}, bytes(8)), "8 to 0 cannot hold"),
    "a shape beyond memory": (file_of({"w": entry(shape=(2**62, 2**62))}), "cannot hold"),
    "no bytes in many rows": (
        file_of({"w": entry(shape=(2**63, 0), offsets=(0, 0))}),
        "is not a dimension",
    ),
    "cut short": (file_of({"w": entry()}, bytes(7)), "7 bytes of arrays"),
    "bytes too many": (file_of({"w": entry()}, bytes(9)), "9 bytes of arrays"),
    "a gap": (file_of({"w": entry(offsets=(4, 12))}, bytes(12)), "starts at byte 4"),
    "an overlap": (file_of({"v": entry(), "w": entry(offsets=(4, 12))}, bytes(12)), "ends at 8"),
    "a boolean of 2": (file_of({"w": entry("BOOL", (1,), (0, 1))}, b"\2"), "neither 0 nor 1"),
}


@pytest.mark.parametrize(("data", "message"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_refused_and_named(data: bytes, message: str) -> None:
    with pytest.raises(ParseError, match=message) as caught:
        read_weights(data, "w.safetensors")
    assert "w.safetensors" in str(caught.value.at)
    assert caught.value.fix


@settings(max_examples=150)
@given(st.data())
def test_changed_bytes_are_refused_or_make_other_arrays(data: st.DataObject) -> None:
    sound = dumped({"w": np.ones((2, 3)), "flag": np.array([True])}, {"a": "b"})
    changed = exchange_bytes(data, sound, 3)[: data.draw(st.integers(0, len(sound)))]
    arrays: dict[str, AnyArray] = {}
    refused = refusal(lambda: arrays.update(read_weights(changed)[0]), 1_000_000)
    assert refused is None or (isinstance(refused, ParseError) and refused.at and refused.fix)
    assert sum(array.nbytes for array in arrays.values()) <= len(sound)


LENGTHS = st.sampled_from([0, 1, 2, 3, 4, 8, 12, -1, 2**20, 2**64, 2**70, True, 1.0, "1", None])
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["U8", "F32", "BF16", "C64", "F31", "", 4]),
        "shape": st.lists(LENGTHS, max_size=3) | st.just(4),
        "data_offsets": st.lists(LENGTHS, min_size=2, max_size=2) | st.lists(LENGTHS, max_size=3),
    },
    optional={"more": LENGTHS},
)
SOUND = st.tuples(st.sampled_from(["U8", "F32"]), st.lists(st.integers(0, 2), max_size=2))


@st.composite
def doubtful_files(draw: st.DrawFn) -> bytes:
    """Draw headers most of which are sound but for one thing."""
    header: dict[str, Any] = {}
    end = 0
    for name, (dtype, shape) in draw(st.dictionaries(NAMES, SOUND, max_size=3)).items():
        begin = end
        end += int(np.prod(shape)) * {"U8": 1, "F32": 4}[dtype]
        header[name] = entry(dtype, shape, (begin, end))
    if draw(st.booleans()):
        name = draw(NAMES)
        wrong = {**header.get(name, entry("U8", (0,), (0, 0))), **draw(ENTRIES)}
        field = draw(st.sampled_from(["dtype", "shape", "data_offsets", "more"]))
        kept = {key: wrong[key] for key in wrong if key == field}
        header[name] = {**header.get(name, entry("U8", (0,), (0, 0))), **kept}
    raw = json.dumps(header).encode() + b" " * draw(st.integers(0, 3))
    blob = bytes(max(0, end + draw(st.sampled_from([0, 0, 0, 1, -1]))))
    return struct.pack("<Q", len(raw) + draw(st.sampled_from([0, 0, 0, 1, -1]))) + raw + blob


@settings(max_examples=300)
@given(doubtful_files())
def test_a_file_is_refused_exactly_if_the_reference_refuses_it(data: bytes) -> None:
    try:
        theirs = {name: bytes(entry["data"]) for name, entry in safetensors.deserialize(data)}
    except safetensors.SafetensorError:
        with pytest.raises(ParseError):
            read_weights(data)
        return
    ours, _ = read_weights(data)
    assert {name: array.tobytes() for name, array in ours.items()} == theirs


@pytest.mark.parametrize(
    ("name", "message"),
    [("none.safetensors", "there is no such file"), (".", "this is a folder")],
)
def test_what_cannot_be_opened_is_named(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        pl.load_weights(tmp_path / name)
