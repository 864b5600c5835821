"""Deprecated names warn where they are used, and are gone by the release that was named."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from linecache import getline
from pathlib import Path

import pytest
from plait.graph.deprecation import deprecated, warn_deprecated
from plait.version import VERSION

ROOT = Path(__file__).parents[2]
LAYERS = ("graph", "devices", "scheduler", "dialects", "cli")


@deprecated(since="0.3.0", removed_in="0.5.0", instead="pl.plan")
def place(graph: str, *, depth: int = 0) -> tuple[str, int]:
    """Place it."""
    return graph, depth


def test_a_deprecated_function_warns_where_it_is_called_and_does_what_it_did() -> None:
    with pytest.warns(DeprecationWarning, match="place") as caught:
        assert place("graph", depth=2) == ("graph", 2)
    told = "place is deprecated since plait 0.3.0 and will be removed in 0.5.0: use pl.plan"
    assert [(str(one.message), one.filename) for one in caught] == [(told, __file__)]
    assert (place.__name__, place.__doc__) == ("place", "Place it.")


def test_an_argument_warns_at_the_line_that_gives_it() -> None:
    def plan(depth: int | None = None) -> None:
        if depth is not None:
            warn_deprecated("'depth'", since="0.3.0", removed_in="0.5.0", instead="'effort'")

    with pytest.warns(DeprecationWarning, match="'depth' is deprecated") as caught:
        plan(depth=1)
    assert getline(__file__, caught[0].lineno).strip() == "plan(depth=1)"


def removals(source: str) -> Iterator[tuple[int, ...]]:
    """Yield the releases in which a file says that something will be gone."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("deprecated"):
            for keyword in node.keywords:
                if keyword.arg == "removed_in" and isinstance(keyword.value, ast.Constant):
                    yield release(str(keyword.value.value))


def release(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def test_removals_are_seen() -> None:
    assert set(removals(Path(__file__).read_text())) == {(0, 5, 0)}


def test_nothing_is_there_that_was_to_be_gone_by_now() -> None:
    overdue = [
        str(file.relative_to(ROOT))
        for layer in LAYERS
        for file in (ROOT / layer).rglob("*.py")
        if "deprecated(" in (source := file.read_text())
        and any(gone <= release(VERSION) for gone in removals(source))
    ]
    assert overdue == []
