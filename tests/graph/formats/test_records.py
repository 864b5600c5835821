"""Records: what is written by its annotations comes back equal, and nothing else is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait.graph.formats.records import describe_layout, put_record, read_record
from plait.graph.formats.scalars import ScalarReader, ScalarWriter
from plait.graph.values.errors import GraphError, ParseError

TEXTS = st.text(st.characters(codec="utf-8"), max_size=4)


class Pair(NamedTuple):
    left: int
    right: str


@dataclass(frozen=True)
class Inner:
    names: frozenset[str]
    factor: float | None = None


@dataclass(frozen=True)
class Outer:
    mode: Literal["fast", "slow"]
    flag: bool
    row: tuple[int, str]
    places: tuple[Inner, ...]
    pairs: Mapping[tuple[str, str], Pair]
    derived: int = field(default=0, init=False)


PAIRS = st.builds(Pair, st.integers(-(2**63), 2**63 - 1), TEXTS)
INNERS = st.builds(Inner, st.frozensets(TEXTS, max_size=3), st.none() | st.floats(allow_nan=False))
OUTERS = st.builds(
    Outer,
    st.sampled_from(["fast", "slow"]),
    st.booleans(),
    st.tuples(st.integers(0, 9), TEXTS),
    st.lists(INNERS, max_size=3).map(tuple),
    st.dictionaries(st.tuples(TEXTS, TEXTS), PAIRS, max_size=3),
)


def written(value: object, kind: Any = None) -> bytes:
    writer = ScalarWriter()
    put_record(writer, value, kind)
    return b"".join(writer.parts)


def read(data: bytes, kind: type[Any]) -> Any:
    reader = ScalarReader(data, "bytes")
    return reader.read(lambda: read_record(reader, kind))


@given(OUTERS)
def test_a_record_comes_back_equal(value: Outer) -> None:
    assert read(written(value), Outer) == value


def test_numbers_of_numpy_are_written_as_plain_ones() -> None:
    assert read(written(Pair(int(np.int64(3)), "x")), Pair) == Pair(3, "x")
    assert read(written((np.float32(0.5), np.int8(2)), tuple[float, int]), tuple[float, int]) == (
        0.5,
        2,
    )


@pytest.mark.parametrize(
    ("value", "written_as", "read_as"),
    [
        ("medium", str, Literal["fast", "slow"]),
        (1, int, bool),
        (1, int, float),
        (True, bool, int),
        ((1, 2), tuple[int, ...], tuple[str, ...]),
        ((("a", 1), ("a", 2)), tuple[tuple[str, int], ...], Mapping[str, int]),
        ((1, 2), tuple[int, int], tuple[int]),
        (-1, int, tuple[int, ...]),
        (2**40, int, tuple[int, ...]),
    ],
)
def test_what_is_of_another_kind_is_damage(value: Any, written_as: Any, read_as: Any) -> None:
    with pytest.raises(ParseError, match="damaged"):
        read(written(value, written_as), read_as)


def test_what_is_no_record_of_scalars_cannot_be_written() -> None:
    with pytest.raises(GraphError, match="cannot be saved"):
        written([1, 2])


def test_the_layout_tells_types_and_names_apart() -> None:
    @dataclass
    class Other:
        left: int
        right: str
        more: int

    kinds = (Pair, Other, Inner, Outer, tuple[int, str], tuple[int, ...], frozenset[int])
    assert len({describe_layout(kind) for kind in kinds}) == len(kinds)
