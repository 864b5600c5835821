"""Graphs and plans as Python shows them: a line, however large they are; in notebooks, a page."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import plait as pl
import pytest
from plait.scheduler.reports.html import page


def chain(length: int) -> pl.Graph:
    b = pl.GraphBuilder("chain")
    x = b.input("x", "float32", ("n", 2))
    for _ in range(length):
        x = b.op("Add", x, 1.0)
    b.output("y", x)
    return b.build()


def test_a_graph_is_shown_by_its_counts() -> None:
    shown = "<Graph 'chain': inputs 1, outputs 1, nodes 300, constants 300>"
    assert repr(chain(300)) == shown


def test_a_plan_is_shown_by_its_counts_and_memory() -> None:
    plan = pl.plan(chain(3), passes=())
    assert (
        repr(plan) == "<Plan 'chain': 3 nodes in 1 subgraph on cpu, 1 in flight, memory by shapes>"
    )
    known = pl.plan(chain(1), shapes={"x": (8, 2)}, passes=(), max_in_flight=2)
    assert repr(known).startswith("<Plan 'chain': 1 node in 1 subgraph on cpu, 2 in flight, ")
    assert repr(known).endswith(" in host>")


def test_a_plan_that_holds_plans_is_shown_in_a_line_too() -> None:
    assert len(repr(pl.plan(chain(400), ["cpu", "worker:0"], shapes={"x": (8, 2)}))) < 200


def shown(markup: str) -> str:
    """Return the page inside of a frame."""
    found = re.fullmatch(
        r'<iframe srcdoc="([^"]*)" sandbox="allow-scripts" [^>]*></iframe>', markup
    )
    assert found is not None
    return html.unescape(found[1])


def test_a_plan_a_simulation_and_a_profile_show_their_page_in_a_notebook(tmp_path: Path) -> None:
    plan = pl.plan(chain(3), shapes={"x": (8, 2)}, passes=())
    plan.save_html(tmp_path / "plan.html")
    assert shown(plan._repr_html_()) == (tmp_path / "plan.html").read_text()
    assert "<title>chain - plait</title>" in shown(pl.simulate(plan)._repr_html_())
    with pl.BlockingSession(plan) as session:
        session.run({"x": np.ones((8, 2), "float32")})
        profile = session.profile()
    assert "measured items" in shown(profile._repr_html_())


def test_what_is_too_large_for_a_notebook_says_how_to_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = pl.plan(chain(3), passes=())
    monkeypatch.setattr(page, "MOST_BYTES", 1000)
    assert "save_html(&#x27;page.html&#x27;)" in plan._repr_html_()
    monkeypatch.setattr(page, "MOST_NODES", 2)
    assert "3 nodes are too many for a notebook" in plan._repr_html_()
    assert len(plan._repr_html_()) < 300


def test_a_graph_shows_its_first_lines_in_a_notebook() -> None:
    assert chain(2)._repr_html_() == f"<pre>{html.escape(str(chain(2)))}</pre>"
    lines = chain(400)._repr_html_().splitlines()
    assert len(lines) == 61
    left = len(str(chain(400)).splitlines()) - 60
    assert lines[-1] == f"  ... {left:,} more lines: print(graph)</pre>"


def test_a_name_that_is_markup_is_text_in_a_notebook() -> None:
    b = pl.GraphBuilder("<script>")
    b.output("y", b.input("x", "float32", ()) + 1.0)
    graph = b.build()
    assert "<script>" not in graph._repr_html_()
    assert "<script>" not in pl.plan(graph)._repr_html_()


def test_every_public_name_is_in_dir_though_it_is_not_imported_yet() -> None:
    code = (
        "import plait; missing = set(plait.__all__) - set(dir(plait)); "
        "import sys; print(missing, 'plait.scheduler' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert answer.stdout.split() == ["set()", "False"]
