"""Formulas of files: what they mean, and what is refused."""

from __future__ import annotations

from typing import Any

import plait as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait.graph.formats.expressions import DEEPEST, LONGEST, Path, read_formula, read_path


def value(text: str, **names: Any) -> Any:
    return read_formula(text, "here")(lambda path: names[str(path[0])])


arithmetic = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(" ".join),
        inner.map("({})".format),
        inner.map("-{}".format),
        inner.map("{} ** 2".format),
    ),
    max_leaves=12,
)


@given(arithmetic)
def test_arithmetic_is_that_of_python(text: str) -> None:
    assert value(text) == eval(text)


@given(
    st.lists(st.sampled_from(["t", "f", "!t", "!f", "(f || t)", "(t && f)"]), min_size=1), st.data()
)
def test_connectives_are_those_of_python(parts: list[str], data: st.DataObject) -> None:
    text = parts[0]
    for part in parts[1:]:
        text += data.draw(st.sampled_from([" && ", " || "])) + part
    words = text.replace("&&", "and").replace("||", "or").replace("!", "not ")
    names = {"t": True, "f": False}
    assert value(text[:LONGEST], **names) is eval(words, names)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("48 / 3 / 2", 8),
        ("5 / 2", 2.5),
        ("7 % 4", 3),
        ("1e-3 * 2", 2e-3),
        ("360 * 2 ** -2", 90),  # as Perl, which LightNet has formulas read by
        ("-2 ** 2", -4),
        ("2 ** 3 ** 2", 512),
        ("4**.5", 2),
        ("(-2) ** -1", -0.5),
        (".5 < 1", True),
        ("1 + 1 == 2 && 3 >= 3 && 2 != 3 && 1 <= 1 && 2 > 1", True),
        ('kind == "max"', True),
        ('"a" < "b"', True),
        ("[1, 1 + 1] == pair", True),
        ("nothing == null", True),
        ("false || true", True),
    ],
)
def test_formulas_have_values(text: str, wanted: object) -> None:
    assert value(text, kind="max", pair=(1, 2), nothing=None) == wanted


def test_whole_quotients_and_powers_stay_integers() -> None:
    assert isinstance(value("368 / 2"), int)
    assert value("2 ** 64") == 2**64
    assert isinstance(value("3 ** 200"), float)  # more digits than are computed


def test_powers_take_no_work_that_their_text_does_not_show() -> None:
    with pytest.raises(pl.ParseError, match="has no value"):
        value("9 ** 9 ** 9 ** 9")


def test_the_right_side_is_not_asked_for_where_the_left_one_decides() -> None:
    asked: list[Path] = []
    read_formula("0 == 1 && a", "here")(asked.append)
    read_formula("1 == 1 || a", "here")(asked.append)
    assert asked == []


def test_paths_are_handed_to_whoever_knows() -> None:
    asked: list[Path] = []
    read_formula("self.params[pads][0]", "here")(asked.append)
    assert asked == [("self", "params", "pads", 0)]
    assert read_path(" a.ins[2] ", "here") == ("a", "ins", 2)


@pytest.mark.parametrize(
    "text",
    [
        *("", "1 +", "(1", "[1, ", "1 2", "$x", "a[", "a[1.5]", "a.", "a[b c]", "1 = 2", '"a'),
        *("12ab", "f(1)", "1..2", "(" * (DEEPEST + 1), "-" * (DEEPEST + 1), "1+" * LONGEST),
        *("2 **", "** 2", "2 * * 3", "1" + "**1" * DEEPEST),
    ],
)
def test_what_is_no_formula_is_refused(text: str) -> None:
    with pytest.raises(pl.ParseError, match=r"^in '") as caught:
        read_formula(text, "here")
    assert caught.value.at == "here"


@pytest.mark.parametrize("text", ["1", "a b", "a + b", "-a"])
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(pl.ParseError):
        read_path(text, "here")


@pytest.mark.parametrize("text", ['1 + "a"', "true + 1", "null < 1", '"a" * 2', "[1] + [2]"])
def test_operands_that_do_not_fit_are_refused(text: str) -> None:
    with pytest.raises(pl.ParseError, match="makes no sense"):
        value(text)


@pytest.mark.parametrize(
    "text", ["1 / 0", "1 % 0", "1 / (2 - 2)", "0 ** -1", "(-8) ** .5", "10 ** 400", "1e200 ** 2"]
)
def test_what_has_no_value_is_refused(text: str) -> None:
    with pytest.raises(pl.ParseError, match="has no value"):
        value(text)


def test_the_longest_formula_has_a_value() -> None:
    assert value("1" + "+1" * ((LONGEST - 1) // 2)) == (LONGEST + 1) // 2
