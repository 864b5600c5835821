"""The report in a real browser: that it works, and asks nothing of any network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import plait as pl
import pytest
from nested_graphs import doubling_body
from report_pages import HOSTILE, branches, profiled, split, written

if TYPE_CHECKING:
    from report_browser import Browser

pytestmark = pytest.mark.slow

PLAN_NODES = 20


def test_the_page_has_its_title_and_all_its_parts(page: Browser) -> None:
    assert page.driver.title == "branches - plait"
    assert page.run("return [...document.querySelectorAll('h2')].map((h) => h.textContent)") == [
        "Summary", "Graph", "Timeline", "Memory", "Steps", "Nodes",
    ]  # fmt: skip


def test_the_page_asks_for_nothing_but_itself(page: Browser) -> None:
    asked = page.requests()
    assert any(url.endswith("report.html") for url in asked)
    assert [url for url in asked if not url.endswith("report.html") and url != "data:,"] == []


def test_no_script_complains_whatever_is_pressed(page: Browser) -> None:
    for number in range(len(page.driver.find_elements("css selector", "button"))):
        buttons = page.driver.find_elements("css selector", "button")
        if number < len(buttons):
            page.run("arguments[0].click()", buttons[number])
            page.settle()
    page.run("window.dispatchEvent(new Event('beforeprint'))")
    page.run("window.dispatchEvent(new Event('afterprint'))")
    assert page.complaints() == []


def test_a_script_that_a_policy_refuses_shows_that_complaints_are_seen(page: Browser) -> None:
    page.run(
        "const s = document.createElement('script'); s.textContent = '1'; document.body.append(s)"
    )
    assert any("Content Security Policy" in complaint for complaint in page.complaints())


def test_names_from_a_file_stay_text(browser: Browser, tmp_path: Path) -> None:
    name = HOSTILE.replace("\ud800", "") + "<img src=x onerror=alert(1)>"
    written(split(branches(1, name, name)), tmp_path)
    browser.open(tmp_path / "report.html")
    browser.run("plait.selection.pick(0, 'test')")
    browser.settle()
    assert browser.run("return document.querySelectorAll('img').length") == 0
    assert "<img src=x onerror=alert(1)>" in browser.text("h1")
    assert "<img src=x onerror=alert(1)>" in browser.text("#details h3")
    assert browser.complaints() == []


def test_the_table_has_a_row_for_every_node(page: Browser) -> None:
    assert len(page.column("nodes", 0)) == PLAN_NODES
    assert page.text("#nodes .status") == "1 to 20 of 20"


def test_the_table_is_sorted_by_any_column_both_ways(page: Browser) -> None:
    costs = page.run("return plait.data.nodes.cost_us")
    names = page.run("return plait.data.nodes.name")
    page.press("#nodes th:nth-child(4) button")
    by_cost = sorted(range(PLAN_NODES), key=lambda row: -costs[row])
    assert page.column("nodes", 0) == [names[row] for row in by_cost]
    sort = "return document.querySelector('#nodes th:nth-child(4)').getAttribute('aria-sort')"
    assert page.run(sort) == "descending"
    page.press("#nodes th:nth-child(4) button")
    assert page.run(sort) == "ascending"
    assert page.column("nodes", 0)[0] == names[min(range(PLAN_NODES), key=lambda r: costs[r])]


@pytest.mark.extended
def test_the_table_is_searched_in_all_columns(page: Browser) -> None:
    page.driver.find_element("css selector", "#nodes input").send_keys("no kernel for 'tanh'")
    assert page.column("nodes", 0) == [f"block{block}/tanh" for block in range(4)]
    assert page.text("#nodes .status") == "1 to 4 of 4 (20 in all)"


def test_choosing_a_row_selects_the_node_everywhere(page: Browser) -> None:
    page.press("#nodes tbody tr:nth-child(7) th button")
    assert page.run("return plait.selection.node") == 6
    assert page.text("#details h3") == "block1/relu"
    assert (
        page.run("return document.querySelector('#nodes tr.marked th').textContent")
        == "block1/relu"
    )


def test_measured_times_stand_in_the_tables(page: Browser) -> None:
    heads = page.run(
        "return [...document.querySelectorAll('#nodes thead button')].map((b) => b.firstChild.data)"
    )
    measured = page.column("nodes", heads.index("Measured"))
    assert len(measured) == PLAN_NODES
    assert all(measured)
    assert page.run("return document.querySelectorAll('#summary .histogram rect').length") > 3


def test_the_summary_says_where_the_time_of_items_went(page: Browser) -> None:
    rows = page.run(
        "return [...document.querySelectorAll('table[aria-label=\"time of items\"] tr')]"
        ".map((row) => [...row.children].map((cell) => cell.textContent))"
    )
    shares = {name: float(share.rstrip(" %")) for name, _, share, _ in rows}
    assert sum(shares.values()) == pytest.approx(100, abs=1)
    assert {"compute", "device busy", "back pressure", "consumer"} <= set(shares)
    assert shares["compute"] > 0


@pytest.mark.extended
def test_the_theme_goes_through_automatic_light_and_dark(page: Browser) -> None:
    paper = "return getComputedStyle(document.querySelector('section')).backgroundColor"
    seen = []
    for _ in range(3):
        page.press(".head nav button")
        seen.append((page.text(".head nav button"), page.run(paper)))
    assert [name for name, _ in seen] == ["Theme: light", "Theme: dark", "Theme: auto"]
    assert seen[0][1] == "rgb(255, 255, 255)"
    assert seen[1][1] == "rgb(26, 30, 36)"


@pytest.mark.extended
def test_every_control_can_be_reached_by_keys(page: Browser) -> None:
    beyond = page.run(
        "return [...document.querySelectorAll('button, canvas, input, a')]"
        ".filter((one) => one.tabIndex < 0).length"
    )
    assert beyond == 0


@pytest.mark.extended
def test_it_prints_in_light_colours(page: Browser) -> None:
    page.run("document.documentElement.dataset.theme = 'dark'")
    page.run("window.dispatchEvent(new Event('beforeprint'))")
    assert page.run("return document.documentElement.dataset.theme") == "light"
    page.run("window.dispatchEvent(new Event('afterprint'))")
    assert page.run("return document.documentElement.dataset.theme") == "dark"
    assert len(page.driver.print_page()) > 10_000


@pytest.mark.extended
def test_a_symbolic_plan_has_graph_and_table_only(browser: Browser, tmp_path: Path) -> None:
    builder = pl.GraphBuilder("open")
    builder.output("y", builder.op("Relu", builder.input("x", "float32", ("n", 2)), name="relu"))
    written(pl.plan(builder.build()), tmp_path)
    browser.open(tmp_path / "report.html")
    assert browser.run("return [...document.querySelectorAll('h2')].map((h) => h.textContent)") == [
        "Summary", "Graph", "Nodes",
    ]  # fmt: skip
    assert browser.complaints() == []


@pytest.mark.extended
def test_a_replica_is_said_to_do_what_the_first_of_its_range_does(
    browser: Browser, tmp_path: Path
) -> None:
    builder = pl.GraphBuilder("replicas")
    builder.output("y", builder.input("x", "float32", (8, 8)).relu(name="relu"))
    plan = pl.plan(builder.build(), ["cpu:0..1"], max_in_flight=2)
    written(plan, tmp_path, profiled(plan, {"x": np.ones((8, 8), "float32")}, 4))
    browser.open(tmp_path / "report.html")
    shown = browser.run(
        "return [...document.querySelectorAll('.legend li')].map((one) => one.textContent)"
    )
    assert shown[0].startswith("cpu:0 1 node")
    assert shown[1:] == ["cpu:1 as cpu:0, for other items"]
    assert browser.complaints() == []


@pytest.mark.extended
def test_a_plan_with_control_flow_is_shown(browser: Browser, tmp_path: Path) -> None:
    builder = pl.GraphBuilder("loops")
    trips, x = builder.input("trips", "int64", ()), builder.input("x", "float32", (3,))
    state, _ = builder.op("Loop", trips, None, x, body=doubling_body(), name="loop", outputs=2)
    builder.output("y", state)
    written(pl.plan(builder.build()), tmp_path)
    browser.open(tmp_path / "report.html")
    assert "loop/double" in browser.column("nodes", 0)
    browser.run("plait.selection.pick(plait.data.nodes.name.indexOf('loop/double'), 'test')")
    assert browser.text("#details h3") == "loop/double"
    assert browser.complaints() == []


def test_five_thousand_nodes_are_there(
    browser: Browser, large_plan: pl.Plan, tmp_path: Path
) -> None:
    written(large_plan, tmp_path)
    browser.open(tmp_path / "report.html")
    browser.settle()
    assert browser.text("#nodes .status") == "1 to 100 of 5,000"
    assert browser.run("return plait.views.graph.scene.model.grouped")
    browser.driver.find_element("css selector", "#nodes input").send_keys("block777/")
    assert browser.column("nodes", 0)[0] == "model/encoder/block777/mul"
    browser.run("plait.selection.pick(4000, 'test')")
    browser.press("#graph header button")
    assert browser.run("return plait.views.graph.scene.model.boxes.length") == 5002
    assert browser.complaints() == []
