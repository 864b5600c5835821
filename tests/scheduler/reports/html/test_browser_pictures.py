"""The pictures of the report in a real browser: graph, timelines, memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plait as pl
import pytest
from report_pages import branches, split

if TYPE_CHECKING:
    from report_browser import Browser

pytestmark = pytest.mark.extended

PLAN_NODES = 20

ENTER, SHIFT = "\ue007", "\ue008"
"""Keys, as WebDriver writes them."""


def test_the_graph_is_drawn_with_a_box_for_every_node(page: Browser) -> None:
    kinds = page.run("return plait.views.graph.scene.model.boxes.map((box) => box.kind)")
    assert kinds.count("node") == PLAN_NODES
    assert kinds.count("input") == kinds.count("output") == 1
    assert page.colours("plait.views.graph") > 20


def test_boxes_of_the_graph_do_not_overlap(page: Browser) -> None:
    boxes = page.run("return plait.views.graph.scene.model.boxes")
    for place, a in enumerate(boxes):
        for b in boxes[:place]:
            assert (
                a["x"] >= b["x"] + b["width"]
                or b["x"] >= a["x"] + a["width"]
                or a["y"] >= b["y"] + b["height"]
                or b["y"] >= a["y"] + a["height"]
            )


def test_clicking_a_node_shows_its_device_reason_and_options(page: Browser) -> None:
    assert "Click a node" in page.text("#details")
    page.click_box("node", 2)
    shown = page.text("#details")
    assert "block0/tanh" in shown
    assert "cpu" in shown
    assert "no kernel for 'Tanh' on this device" in shown
    assert "float32[64, 32]" in shown


def test_hovering_a_node_names_it(page: Browser) -> None:
    x, y = page.run(
        "const v = plait.views.graph; const b = v.scene.model.boxes.find((b) => b.kind === 'node');"
        "return [v.toScreenX(b.x + 9), v.toScreenY(b.y + 9)]"
    )
    page.click("plait.views.graph", x, y)
    assert not page.run("return document.getElementById('tip').hidden")
    assert "block0/mul" in page.text("#tip")


def test_the_subgraphs_open_and_close(page: Browser) -> None:
    page.press("#graph header button")
    boxes = "return plait.views.graph.scene.model.boxes.map((box) => box.kind)"
    closed = page.run(boxes)
    assert "node" not in closed
    page.click_box("group", 0)
    opened = page.run(boxes)
    assert opened.count("frame") == 1
    assert opened.count("node") == page.run("return plait.data.graph.groups.nodes[0].length")
    x, y = page.run(
        "const v = plait.views.graph; const b = v.scene.model.boxOfGroup[0];"
        "return [v.toScreenX(b.x + 6), v.toScreenY(b.y + 6)]"
    )
    page.click("plait.views.graph", x, y)
    assert page.run(boxes) == closed


def test_keys_zoom_move_and_walk_in_the_graph(page: Browser) -> None:
    page.run("plait.views.graph.canvas.focus(); plait.selection.pick(0, 'graph')")
    canvas = page.run("return plait.views.graph.canvas")
    scale = page.run("return plait.views.graph.scaleX")
    canvas.send_keys("+")
    assert page.run("return plait.views.graph.scaleX") > scale
    canvas.send_keys("0")
    assert page.run("return plait.views.graph.scaleX") == pytest.approx(scale)
    canvas.send_keys("]")
    assert page.run("return plait.selection.node") == 1
    canvas.send_keys("[")
    assert page.run("return plait.selection.node") == 0


def test_the_wheel_scrolls_the_page_until_the_picture_has_the_focus(page: Browser) -> None:
    canvas = page.run("return plait.views.graph.canvas")
    wheel = (
        "arguments[0].dispatchEvent(new WheelEvent('wheel', {deltaY: -300, cancelable: true}));"
        "return plait.views.graph.scaleX"
    )
    before = page.run("return plait.views.graph.scaleX")
    assert page.run(wheel, canvas) == before
    page.run("arguments[0].focus()", canvas)
    assert page.run(wheel, canvas) > before


FIRST_TIMELINE = "#timeline .chooser button:first-child"
"""The button of what is predicted of one item."""


def test_the_timeline_has_a_bar_for_every_step_and_marks_the_critical_path(page: Browser) -> None:
    page.press(FIRST_TIMELINE)
    plan = split(branches(PLAN_NODES // 5))
    timeline = "plait.views.timelines[0].scene.timeline"
    assert page.run(f"return {timeline}.start.length") == len(plan.steps)
    critical = page.run(f"return {timeline}.critical.reduce((a, b) => a + b)")
    assert critical == len(pl.simulate(plan).critical_path)
    marked = [cell for cell in page.column("steps", 6) if cell == "critical"]
    assert len(marked) == critical
    assert page.colours("plait.views.timelines[0]") > 10


def test_bars_of_a_lane_do_not_overlap(page: Browser) -> None:
    for number in range(3):
        bars = page.run(
            """
            const {scene} = plait.views.timelines[arguments[0]];
            const t = scene.timeline;
            return t.start.map((s, i) => [t.lane[i], scene.row[i], s, s + t.duration[i]]);
            """,
            number,
        )
        last: dict[tuple[int, int], float] = {}
        for lane, row, start, end in bars:
            assert start >= last.get((lane, row), 0) - 0.002
            last[lane, row] = end


def test_clicking_a_bar_selects_a_node_of_its_step(page: Browser) -> None:
    page.press(FIRST_TIMELINE)
    x, y, subgraph = page.run(
        """
        const view = plait.views.timelines[0];
        const {scene} = view;
        const t = scene.timeline;
        const bar = t.step.findIndex((s) => t.steps[s].subgraph !== null);
        const x = view.toScreenX(t.start[bar] + t.duration[bar] / 2);
        return [x, scene.top(bar) + 5, t.steps[t.step[bar]].subgraph];
        """
    )
    page.click("plait.views.timelines[0]", x, y)
    assert page.run("return plait.data.nodes.subgraph[plait.selection.node]") == subgraph


def test_wide_bars_show_their_nodes_which_can_be_chosen(page: Browser) -> None:
    page.press(FIRST_TIMELINE)
    x, y, node = page.run(
        """
        const view = plait.views.timelines[0];
        const {scene} = view;
        const t = scene.timeline;
        const bar = t.step.findIndex((s) => scene.shares[s].length > 1);
        view.fit([t.start[bar], 0, t.duration[bar], scene.reach]);
        const [{end}, {node}] = scene.shares[t.step[bar]];
        const x = view.toScreenX(t.start[bar] + t.duration[bar] * end);
        return [x + 3, scene.top(bar) + 22, node];
        """
    )
    page.click("plait.views.timelines[0]", x, y)
    assert page.run("return plait.selection.node") == node
    assert page.text("#details h3") in page.text("#tip")


@pytest.mark.parametrize("by_time", [False, True], ids=["by step order", "by time"])
def test_rectangles_do_not_overlap_where_both_live(page: Browser, by_time: bool) -> None:
    if by_time:
        page.press("#memory header button:nth-of-type(2)")
    regions = page.run(
        "const plain = (box) => [box.from, box.to, box.offset, box.nbytes];"
        "return plait.views.arenas.map((view) => view.scene.boxes.map(plain))"
    )
    assert sum(map(len, regions)) > 10
    for boxes in regions:
        for place, (start, end, offset, nbytes) in enumerate(boxes):
            assert start < end
            for other_start, other_end, other_offset, other_nbytes in boxes[:place]:
                live = start < other_end - 1e-3 and other_start < end - 1e-3
                share = offset < other_offset + other_nbytes and other_offset < offset + nbytes
                assert not (live and share)
    assert page.colours("plait.views.arenas[0]") > 5


def test_the_page_opens_on_what_was_measured(page: Browser) -> None:
    assert page.text('#timeline .chooser [aria-pressed="true"]') == "measured: 12 items"
    assert page.colours("plait.views.timelines.at(-1)") > 10


def test_what_is_searched_in_the_graph_stays_bright_and_is_walked_through(page: Browser) -> None:
    field = page.driver.find_element("css selector", "#graph input")
    field.send_keys("block2/ADD")
    page.settle()
    assert page.text("#graph .status") == "1 node"
    field.send_keys(ENTER)
    assert page.text("#details h3") == "block2/add"
    field.clear()
    field.send_keys("tanh")
    walked = []
    for key in (ENTER, ENTER, SHIFT + ENTER):
        field.send_keys(key)
        walked.append(page.text("#details h3"))
    assert walked == ["block0/tanh", "block1/tanh", "block0/tanh"]
    field.clear()
    field.send_keys("nothing like it")
    assert page.text("#graph .status") == "0 nodes"
    field.clear()
    field.send_keys(" ")
    assert page.run("return plait.views.graph.scene.found") is None


def test_boxes_that_are_too_small_for_words_are_named_by_what_their_names_begin_with(
    page: Browser,
) -> None:
    page.settle()
    areas = page.run(
        """
        const view = plait.views.graph;
        view.zoom(0.3 / view.scaleX);
        view.draw();
        return view.scene.prefixes(view).map(({prefix, words, nodes}) => [prefix, words, nodes]);
        """
    )
    assert {prefix for prefix, _, _ in areas} == {f"block{n}" for n in range(4)}
    assert {words for _, words, _ in areas if words} == {f"block{n}" for n in range(4)}
    assert sum(nodes for _, _, nodes in areas) == PLAN_NODES
