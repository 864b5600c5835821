"""Mappings of limited size."""

from __future__ import annotations

import pytest
from plait.graph.values import recent
from plait.graph.values.recent import RecentItems


def test_the_least_recently_used_key_is_dropped_first() -> None:
    items: RecentItems[str, int] = RecentItems(2)
    items["a"], items["b"] = 1, 2
    assert items.get("a") == 1  # a use: now "b" is the oldest
    items["c"] = 3
    assert [items.get(key) for key in "abc"] == [1, None, 3]


def test_an_assignment_is_a_use_and_takes_no_further_place() -> None:
    items: RecentItems[str, int] = RecentItems(2)
    items["a"], items["b"] = 1, 2
    items["a"] = 4
    items["c"] = 3
    assert [items.get(key) for key in "abc"] == [4, None, 3]


def test_keys_leave_one_by_one_or_together() -> None:
    items: RecentItems[str, int] = RecentItems(2)
    items["a"], items["b"] = 1, 2
    assert items.pop("a") == 1
    assert items.pop("a") is None
    assert "b" in items
    items.clear()
    assert "b" not in items


def test_the_limit_of_results_by_shape_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "KEPT_SHAPES", 1)
    items: RecentItems[str, int] = RecentItems()
    items["a"], items["b"] = 1, 2
    assert "a" not in items
    assert "b" in items
