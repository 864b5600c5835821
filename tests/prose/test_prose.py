"""Prose: no file gets worse, and new files begin well. See STYLE.md."""

from __future__ import annotations

from pathlib import Path

import prose
import pytest


@pytest.mark.extended  # `make check` runs it, too
def test_no_file_exceeds_its_budget() -> None:
    """`python tools/prose.py FILE` shows the places."""
    budgets = prose.read_budgets()
    excess = []
    for file in prose.list_files():
        name = str(file.relative_to(prose.ROOT))
        budget = budgets.get(name, prose.Budget())
        excess += [f"{name}: {one}" for one in prose.find_excess(prose.measure(file), budget)]
    assert not excess, "\n".join(excess)


@pytest.mark.parametrize("text", ['"""Do so again."""\n', '"""Of an item."""\n'])
def test_a_docstring_does_not_lean_on_its_neighbour(text: str) -> None:
    assert prose.find_excess(prose.measure_python(text), prose.Budget()) == [
        "1 openings, at most 0 allowed"
    ]


def test_markers_are_counted_in_docstrings_comments_and_pages_and_nowhere_else() -> None:
    source = '"""Tell who waits."""\n\nx = "who"  # nobody\ncall(\n    "who",\n)\n'
    assert prose.measure_python(source).markers == [(1, "Tell"), (1, "who"), (3, "nobody")]
    page = "# What\n\n```python\nwho\n```\n\nThis is no page.\n"
    assert prose.measure_markdown(page).markers == [(1, "What"), (7, "is no")]


def test_a_new_file_may_have_six_markers_in_a_thousand_words() -> None:
    def count_excess(markers: int, words: int) -> int:
        text = "nobody " * markers + "word " * (words - markers)
        return len(prose.find_excess(prose.measure_markdown(text), prose.Budget()))

    assert (count_excess(6, 1000), count_excess(7, 1000)) == (0, 1)
    assert (count_excess(1, 59), count_excess(1, 60)) == (0, 1)


def test_functions_begin_with_a_verb_unless_a_decorator_registers_them() -> None:
    source = """
def sorted_nodes(): ...
@cache
def _cached_nodes(): ...
@kernel("Relu")
def relu(): ...
async def send(): ...
class Nodes:
    def nodes(self): ...
"""
    names = [name for _, name in prose.measure_python(source).nouns]
    assert names == ["sorted_nodes", "_cached_nodes"]


def test_budgets_that_a_merge_left_twice_hold_at_their_tightest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets = tmp_path / "budgets.txt"
    budgets.write_text("a.py 3 1 old_name other\na.py 4 0 old_name\n")
    monkeypatch.setattr(prose, "BUDGETS", budgets)
    assert prose.read_budgets() == {"a.py": prose.Budget(3, 0, frozenset({"old_name"}))}


def test_tightening_lowers_budgets_and_never_raises_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "better.py").write_text("# nobody nobody\ndef nodes(): ...\n")
    (tmp_path / "worse.py").write_text("# nobody nobody nobody\n")
    (tmp_path / "good.py").write_text("# fine\n")
    budgets = tmp_path / "budgets.txt"
    budgets.write_text("better.py 9 2 nodes names\ngone.py 9 0\ngood.py 2 0\nworse.py 2 0\n")
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    monkeypatch.setattr(prose, "BUDGETS", budgets)
    prose.tighten()
    assert budgets.read_text() == "better.py 2 0 nodes\nworse.py 2 0\n"
