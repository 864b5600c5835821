"""Damaged `.plait` files: a PlaitError or a sound graph, in little time and memory."""

from __future__ import annotations

import struct
import zlib
from functools import cache
from typing import Any

import msgpack
import numpy as np
import pytest
from damage import exchange_bytes, refusal
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plait import GraphBuilder, check
from plait.graph.formats.container import GRAPHS
from plait.graph.formats.native import dump_bytes, load_bytes
from plait.graph.values.errors import ParseError, PlaitError

PREFIX = struct.Struct("<8sIIQ")
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["Add", "Relu", "x", "y", "w", "float64", "bool"])
)


@cache
def sound() -> bytes:
    b = GraphBuilder("sound")
    x = b.input("x", "float32", ("n", 4))
    for i in range(3):
        x = b.op("Relu", b.op("Add", x, np.full(4, i, "float32")))
    b.output("y", x)
    b.output("z", b.op("Identity", b.constant(np.array([True, False]), "w")))
    return dump_bytes(b.build())


def header_of(data: bytes) -> bytes:
    return data[PREFIX.size : PREFIX.size + PREFIX.unpack_from(data)[3]]


def with_header(header: bytes, nbytes: int | None = None) -> bytes:
    """Return the sound file with another header and the right checksum."""
    blob = sound()[-(-(PREFIX.size + len(header_of(sound()))) // 64) * 64 :]
    length = len(header) if nbytes is None else nbytes
    prefix = PREFIX.pack(GRAPHS.magic, 1, zlib.crc32(header), length)
    return prefix + header + bytes(-(PREFIX.size + len(header)) % 64) + blob


def load_guarded(data: bytes) -> None:
    """Load and check, within memory of a small multiple of the file's size."""
    refused = refusal(lambda: check(load_bytes(data)), 1_000_000 + 100 * len(data))
    assert refused is None or (refused.what and refused.at and refused.fix)


@settings(max_examples=150)
@given(st.data())
def test_changed_bytes_raise_or_load_a_sound_graph(data: st.DataObject) -> None:
    load_guarded(exchange_bytes(data, sound(), 4))


@settings(max_examples=200)
@given(st.data())
def test_changed_headers_raise_or_load_a_sound_graph(data: st.DataObject) -> None:
    load_guarded(with_header(exchange_bytes(data, header_of(sound()), 3)))


@settings(max_examples=300)
@given(st.data())
def test_changed_scalars_raise_or_load_a_sound_graph(data: st.DataObject) -> None:
    unpacker = msgpack.Unpacker()
    unpacker.feed(header_of(sound()))
    scalars: list[Any] = list(unpacker)
    for _ in range(data.draw(st.integers(1, 2))):
        scalars[data.draw(st.integers(0, len(scalars) - 1))] = data.draw(SCALARS)

    load_guarded(with_header(b"".join(map(msgpack.packb, scalars))))


def test_every_truncation_raises() -> None:
    data = sound()
    assert data[-1:] == b"\x00"  # the last byte is part of a constant: not one byte is spare

    for length in range(len(data)):
        with pytest.raises(ParseError):
            load_bytes(data[:length])


@given(st.binary(max_size=200))
@example(b"\xdd\xff\xff\xff\xff" * 2000)  # arrays in arrays, each said to be 4 billion long
@example(b"\xdc\x0b\x00" * 1000)  # arrays in arrays, each of a length that the header could hold
@example(b"\xdf\xff\xff\xff\xff" * 2000)
@example(b"\xdb\xff\xff\xff\xff" + b"a" * 2000)
@example(msgpack.packb("name") + msgpack.packb(2**63) + b"\x00" * 2000)
@example(b"\xc9\xff\xff\xff\xff\x01" + b"a" * 2000)
def test_any_bytes_as_header_raise(header: bytes) -> None:
    load_guarded(with_header(header))
    with pytest.raises(PlaitError):
        load_bytes(with_header(header))


@pytest.mark.parametrize("nbytes", [2**32, 2**63, 2**64 - 1])
def test_a_header_longer_than_the_file_raises(nbytes: int) -> None:
    with pytest.raises(ParseError, match="cut short"):
        load_bytes(with_header(header_of(sound()), nbytes))
