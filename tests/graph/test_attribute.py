from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait.graph.core.attribute import LONG, REQUIRED, Attribute, Kind, LongTuple, array_in
from plait.graph.values.errors import OperatorError


def complete(attribute: Attribute, given: object) -> Any:
    return attribute.complete("Pool", "size", given, "node 'p'")


@pytest.mark.parametrize(
    ("kind", "given", "stored"),
    [
        (Kind.INT, np.int64(3), 3),
        (Kind.INT, True, 1),
        (Kind.FLOAT, 3, 3.0),
        (Kind.FLOAT, np.float32(0.5), 0.5),
        (Kind.BOOL, 1, True),
        (Kind.BOOL, np.False_, False),
        (Kind.STRING, b"same", "same"),
        (Kind.STRING, "same", "same"),
        (Kind.INTS, [1, np.int8(2)], (1, 2)),
        (Kind.INTS, np.array([1, 2]), (1, 2)),
        (Kind.INTS, (), ()),
        (Kind.FLOATS, (1, 0.5), (1.0, 0.5)),
        (Kind.STRINGS, ["a", b"b"], ("a", "b")),
        (Kind.DTYPE, np.float32, "float32"),
        (Kind.TENSOR, np.array([[0.5, 2]], "f4"), ("float32", 2, 1, 2, 0.5, 2.0)),
        (Kind.TENSOR, ("uint8", 0, 7), ("uint8", 0, 7)),
        (Kind.DTYPE, np.dtype(">i8"), "int64"),
    ],
)
def test_a_value_is_stored_as_a_plain_python_value(kind: Kind, given: object, stored: Any) -> None:
    value = complete(Attribute(kind), given)
    assert value == stored
    assert type(value) is type(stored)
    if isinstance(stored, tuple):
        assert [type(element) for element in value] == [type(element) for element in stored]


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (Kind.INT, 1.0),
        (Kind.INT, "1"),
        (Kind.FLOAT, "1"),
        (Kind.FLOAT, 10**400),
        (Kind.BOOL, 2),
        (Kind.BOOL, "yes"),
        (Kind.STRING, 1),
        (Kind.STRING, b"\xff"),
        (Kind.INTS, 1),
        (Kind.INTS, "12"),
        (Kind.INTS, [1, 2.5]),
        (Kind.FLOATS, ["a"]),
        (Kind.STRINGS, "abc"),
        (Kind.STRINGS, [1]),
        (Kind.DTYPE, "float31"),
    ],
)
def test_a_value_of_another_type_is_refused(kind: Kind, given: object) -> None:
    with pytest.raises(OperatorError) as caught:
        complete(Attribute(kind), given)
    assert str(caught.value) == (
        f"Pool's attribute 'size' must be {kind.value}, got {given!r}\n"
        "  at:  node 'p'\n"
        f"  fix: pass {kind.value}"
    )


class Hostile:
    """An object that can neither be printed nor compared."""

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise RuntimeError("never")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("never")


@pytest.mark.parametrize("kind", Kind)
def test_an_object_of_any_class_is_refused(kind: Kind) -> None:
    for odd in (Hostile(), [Hostile()], 1j, object(), lambda: 0):
        with pytest.raises(OperatorError, match="must be"):
            complete(Attribute(kind), odd)


@pytest.mark.parametrize("given", [[10**5000], list(range(10_000)), "x" * 10_000], ids=type)
def test_an_error_shows_the_beginning_of_a_long_value(given: object) -> None:
    with pytest.raises(OperatorError) as caught:
        complete(Attribute(Kind.FLOAT), given)
    assert len(str(caught.value)) < 700


def test_a_default_stands_in_for_a_value_not_given() -> None:
    assert complete(Attribute(Kind.INT, 7), None) == 7


def test_a_default_of_none_means_absent() -> None:
    assert complete(Attribute(Kind.INTS, None), None) is None


def test_a_required_attribute_must_be_given() -> None:
    with pytest.raises(OperatorError) as caught:
        complete(Attribute(Kind.INT, minimum=1), None)
    assert str(caught.value) == (
        "Pool needs the attribute 'size'\n  at:  node 'p'\n  fix: pass size=an integer ≥ 1"
    )


def test_the_mark_of_a_required_attribute_reads_as_such() -> None:
    assert repr(REQUIRED) == "REQUIRED"


@pytest.mark.parametrize(
    ("attribute", "given"),
    [
        (Attribute(Kind.INT, minimum=1), 0),
        (Attribute(Kind.INT, maximum=8), 9),
        (Attribute(Kind.FLOAT, minimum=0, maximum=1), 1.5),
        (Attribute(Kind.FLOAT, minimum=0, maximum=1), float("nan")),
        (Attribute(Kind.FLOAT, maximum=1), float("nan")),
        (Attribute(Kind.INTS, minimum=1), (1, 0)),
        (Attribute(Kind.STRING, choices=("max", "min")), "mean"),
        (Attribute(Kind.STRINGS, choices=("max", "min")), ("max", "mean")),
    ],
)
def test_a_value_out_of_range_is_refused(attribute: Attribute, given: object) -> None:
    with pytest.raises(OperatorError) as caught:
        complete(attribute, given)
    assert caught.value.what == f"Pool's attribute 'size' must be {attribute.wanted}, got {given!r}"


@pytest.mark.parametrize(
    ("kind", "of"),
    [
        (Kind.FLOAT, lambda x: x),
        (Kind.NUMBER, lambda x: x),
        (Kind.FLOATS, lambda x: (1.0, x)),
        (Kind.TENSOR, lambda x: np.array([[1.0, x]], np.float32)),
    ],
)
def test_what_is_no_number_equals_itself(kind: Kind, of: Callable[[float], object]) -> None:
    first, second = (Attribute(kind).complete("Pool", "size", of(float("nan")), "") for _ in "ab")
    assert [first] == [second]
    assert Attribute(kind).complete("Pool", "size", first, "") == first or first is second


@given(st.integers(-5, 5), st.integers(-5, 0), st.integers(0, 5))
def test_a_range_includes_its_ends(value: int, low: int, high: int) -> None:
    attribute = Attribute(Kind.INT, minimum=low, maximum=high)
    if value in range(low, high + 1):
        assert complete(attribute, value) == value
    else:
        with pytest.raises(OperatorError):
            complete(attribute, value)


@pytest.mark.parametrize(
    ("attribute", "words"),
    [
        (Attribute(Kind.BOOL), "a boolean"),
        (Attribute(Kind.INT, minimum=1), "an integer ≥ 1"),
        (Attribute(Kind.INT, maximum=8), "an integer ≤ 8"),
        (Attribute(Kind.FLOATS, minimum=0, maximum=0.5), "a sequence of numbers in [0, 0.5]"),
        (Attribute(Kind.INT, minimum=1, maximum=1 << 30), "an integer in [1, 1073741824]"),
        (Attribute(Kind.STRING, choices=("a", "b")), "a string among 'a', 'b'"),
    ],
)
def test_what_is_wanted_reads_as_words(attribute: Attribute, words: str) -> None:
    assert attribute.wanted == words


@pytest.mark.parametrize(
    "damaged",
    [
        ("U99999999", 0, "text"),
        ("float32", 1, 3, 0.5),
        ("float32", 2**62, 0.5),
        ("float32", -1, 0.5, 0.5),
        ("float32",),
        (1.0, 2.0),
        np.array(["text", 1], object),
        np.array([1j]),
        ("str", 1, 2, "text", 1),
        ("str", 2**62, "text"),
        ("object", 1, 1, "text"),
        [1.0, 2.0],
    ],
)
def test_what_is_no_array_of_numbers_or_text_is_refused(damaged: Any) -> None:
    with pytest.raises(OperatorError, match="must be an array of numbers or text"):
        complete(Attribute(Kind.TENSOR), damaged)


@pytest.mark.parametrize("array", [np.array([["a", "b"]]), np.array([["a", "b"]], object)])
def test_an_array_of_text_is_stored_and_made_again(array: Any) -> None:
    stored = complete(Attribute(Kind.TENSOR), array)
    assert stored == ("str", 2, 1, 2, "a", "b")
    assert complete(Attribute(Kind.TENSOR), stored) == stored
    assert array_in(stored).tolist() == [["a", "b"]]
    assert array_in(("str", 1, 0)).shape == (0,)


@pytest.mark.parametrize(
    ("kind", "element"),
    [(Kind.INTS, 7), (Kind.FLOATS, 0.5), (Kind.STRINGS, "x"), (Kind.BOOLS, True)],
)
def test_long_sequences_of_plain_values_are_taken_as_they_are(kind: Kind, element: Any) -> None:
    value = (element,) * 1000
    assert complete(Attribute(kind), value) is value
    assert complete(Attribute(kind), list(value)) == value


def test_sequences_of_other_values_are_converted() -> None:
    converted = complete(Attribute(Kind.INTS), (1, True, np.int8(3)))
    assert list(map(type, converted)) == [int, int, int]
    whole = complete(Attribute(Kind.FLOATS), [1, 2.5, np.float32(3)])
    assert list(map(type, whole)) == [float, float, float]
    for value in ((math.nan, 1.0), (math.inf, -math.inf), (math.inf, -math.inf, math.nan)):
        assert complete(Attribute(Kind.FLOATS), value) == complete(Attribute(Kind.FLOATS), value)
    with pytest.raises(OperatorError):
        complete(Attribute(Kind.INTS), (1, 2.5))
    with pytest.raises(OperatorError):
        complete(Attribute(Kind.FLOATS, minimum=0), (1.0, -1.0))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Kind.INTS, [*range(LONG + 1)]),
        (Kind.FLOATS, [math.nan, *map(float, range(LONG))]),
        (Kind.STRINGS, ["leaf", *map(str, range(LONG))]),
        (Kind.BOOLS, [True] * (LONG + 1)),
    ],
)
def test_long_lists_are_checked_and_hashed_once(kind: Kind, value: list[Any]) -> None:
    stored = complete(Attribute(kind), value)
    assert type(stored) is LongTuple
    assert complete(Attribute(kind), stored) is stored
    assert stored == complete(Attribute(kind), tuple(value))
    assert hash(stored) == hash(tuple(stored))
    sent = pickle.loads(pickle.dumps(stored))
    assert type(sent) is tuple
    assert len(sent) == len(value)


def test_a_long_list_of_another_type_is_converted() -> None:
    stored = complete(Attribute(Kind.INTS), range(LONG + 1))
    found = complete(Attribute(Kind.FLOATS), stored)
    assert {*map(type, found)} == {float}
    with pytest.raises(OperatorError):
        complete(Attribute(Kind.STRINGS), stored)
