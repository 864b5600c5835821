"""Registries: names once each, what is missing looked for, and errors that tell the closest."""

from __future__ import annotations

import pytest
from plait.graph.values.errors import GraphError, OperatorError, PlaitError
from plait.graph.values.registry import Registry, count_registrations


def taken_error(name: str) -> PlaitError:
    return GraphError(f"two numbers {name!r}", fix="remove one")


def test_a_name_is_registered_once() -> None:
    numbers: Registry[str, int] = Registry(taken_error)
    numbers.register("one", 1)
    with pytest.raises(GraphError, match="two numbers 'one'"):
        numbers.register("one", 2)
    assert dict(numbers) == {"one": 1}
    assert numbers.find("two") is None


def test_without_words_of_its_own_the_error_names_the_second() -> None:
    numbers: Registry[str, int] = Registry()
    numbers.register("one", 1)
    with pytest.raises(GraphError, match="'one' is registered twice"):
        numbers.register("one", 2)


def test_own_entries_are_registered_when_one_is_missing_and_only_then() -> None:
    calls = list[None]()

    def register_own() -> None:
        calls.append(None)
        numbers.register("two", 2)

    numbers: Registry[str, int] = Registry(own=register_own)
    numbers.register("one", 1)
    assert numbers.find("one") == 1
    assert calls == []
    assert numbers.find("two") == 2
    assert numbers.find("three") is None
    assert list(numbers.all()) == ["one", "two"]
    assert len(calls) == 1


def test_own_entries_that_could_not_be_imported_are_tried_again() -> None:
    failures = [ImportError("not yet")]

    def register_own() -> None:
        if failures:
            raise failures.pop()
        numbers.register("one", 1)

    numbers: Registry[str, int] = Registry(own=register_own)
    with pytest.raises(ImportError):
        numbers.find("one")
    assert numbers.find("one") == 1


@pytest.mark.parametrize("counts", [False, True])
def test_registrations_count_where_plans_depend_on_them(counts: bool) -> None:
    numbers: Registry[str, int] = Registry(counts=counts)
    before = count_registrations()
    numbers.register("one", 1)
    assert count_registrations() - before == counts


def test_an_unknown_name_is_mended_by_the_closest_or_all_are_told() -> None:
    numbers: Registry[str, int] = Registry()
    numbers.register("twelve", 12)
    numbers.register("thirty", 30)
    close = numbers.unknown_error("number", "tweve", "", OperatorError, "here")
    assert isinstance(close, OperatorError)
    assert str(close) == ("there is no number 'tweve'\n  at:  here\n  fix: did you mean 'twelve'?")
    assert numbers.unknown_error("number", "x").fix == "there are: twelve, thirty"
    assert numbers.unknown_error("number", "x", "count them").fix == "count them"
