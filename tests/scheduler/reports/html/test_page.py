from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from counted_work import calls_of
from nested_graphs import doubling_body
from plait.graph.core.printing import format_seconds, rate_text
from plait.scheduler.reports.html.page import embed_json
from report_pages import HOSTILE, branches, profiled, split, values_in, written

CALLS_PER_NODE = 2500
"""Of writing a page, in functions."""


def test_hostile_names_cannot_end_the_data(tmp_path: Path) -> None:
    page = written(split(branches(2, HOSTILE, HOSTILE)), tmp_path)
    values = values_in(page)
    assert values["title"] == HOSTILE
    assert values["nodes"]["name"][0].startswith(HOSTILE)
    assert page.count("<script") == page.count("</script>") == 2
    assert "alert('x')</script>" not in page
    assert "\u2028" not in page


@pytest.mark.parametrize("character", ["<", ">", "&", "\u2028", "\u2029", "\ud800", "\x00"])
def test_embedded_data_hold_no_character_that_means_something_to_a_page(character: str) -> None:
    text = embed_json({"name": f"a{character}b"})
    assert character not in text
    assert text.isascii()


class _Elements(HTMLParser):
    """The elements of a page with their attributes, and the text of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.found:
            self.texts.setdefault(self.found[-1][0], []).append(data)


def test_the_page_loads_nothing(tmp_path: Path) -> None:
    page = written(split(branches(1)), tmp_path)
    links = [value for _, found in _Elements(page).found for key, value in found.items()
             if key in ("src", "href", "action", "data", "srcset")]  # fmt: skip
    assert links == ["data:,"]
    assert not re.search(r"fetch\(|XMLHttpRequest|WebSocket|import\(|@import|url\(", page)


def test_the_policy_allows_this_script_and_this_style_and_no_connection(tmp_path: Path) -> None:
    elements = _Elements(written(split(branches(1)), tmp_path))
    policy = next(found["content"] for tag, found in elements.found if "http-equiv" in found)
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    for text in (max(elements.texts["script"], key=len), elements.texts["style"][0]):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_the_script_sets_text_and_never_markup(tmp_path: Path) -> None:
    page = written(split(branches(1)), tmp_path)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", page)


def test_every_node_has_its_row_with_device_cost_and_reason(tmp_path: Path) -> None:
    plan = split(branches(3))
    values = values_in(written(plan, tmp_path))
    nodes, texts = values["nodes"], values["texts"]
    assert nodes["name"] == [node.name for node in plan.graph.nodes]
    for row, node in enumerate(plan.graph.nodes):
        assert texts[nodes["op"][row]] == node.op
        assert texts[nodes["device"][row]] == plan.assignment[node.name]
        assert texts[nodes["reason"][row]] == plan.reasons[node.name]
        device = plan.assignment[node.name]
        cost_us = plan.costs.node_s(device, plan.graph, node) * 1e6
        assert nodes["cost_us"][row] == pytest.approx(cost_us, rel=1e-3)


def test_options_on_other_devices_say_why_not(tmp_path: Path) -> None:
    values = values_in(written(split(branches(1)), tmp_path))
    row = values["nodes"]["name"].index("block0/tanh")
    text = values["texts"]
    options = {text[d]: (ok, text[why]) for d, ok, why, _ in values["nodes"]["options"][row]}
    assert options["npu"] == (0, "no kernel for 'Tanh' on this device")
    assert options["cpu"][0] == 1


def test_the_edges_are_those_of_the_graph(tmp_path: Path) -> None:
    plan = split(branches(2))
    values = values_in(written(plan, tmp_path))
    names = [*plan.graph.inputs, *(node.name for node in plan.graph.nodes), *plan.graph.outputs]
    edges = values["graph"]["edges"]
    drawn = {(names[s], names[t]) for s, t in zip(edges["source"], edges["target"], strict=True)}
    made = {name: node.name for node in plan.graph.nodes for name in node.outputs}
    made.update((name, name) for name in plan.graph.inputs)
    assert drawn == {
        *((made[t], n.name) for n in plan.graph.nodes for t in n.inputs if t in made),
        *((made[name], name) for name in plan.graph.outputs),
    }


def test_groups_hold_every_node_once(tmp_path: Path) -> None:
    graph = values_in(written(pl.plan(branches(60), passes=()), tmp_path))["graph"]
    members = [node for nodes in graph["groups"]["nodes"] for node in nodes]
    assert sorted(members) == list(range(300))
    assert len(graph["groups"]["nodes"]) > 1  # one subgraph, in pieces
    assert not graph["collapsed"]


def _live_together(a: list[Any], b: list[Any]) -> bool:
    return bool(a[0][0] <= b[0][-1] and b[0][0] <= a[0][-1])


def _share_bytes(a: list[Any], b: list[Any]) -> bool:
    return bool(a[1] < b[1] + b[2] and b[1] < a[1] + a[2])


@pytest.mark.parametrize("max_in_flight", [1, 3])
def test_rectangles_of_memory_do_not_overlap_while_both_live(
    tmp_path: Path, max_in_flight: int
) -> None:
    arenas = values_in(written(split(branches(4), max_in_flight), tmp_path))["arenas"]
    assert sum(len(region["boxes"]) for region in arenas["regions"]) > 10
    for region in arenas["regions"]:
        assert all(box[1] + box[2] <= region["nbytes"] for box in region["boxes"])
        for a, b in combinations(region["boxes"], 2):
            assert not (_live_together(a, b) and _share_bytes(a, b))


def test_every_tensor_of_the_memory_plan_has_a_rectangle(tmp_path: Path) -> None:
    plan = split(branches(2))
    values = values_in(written(plan, tmp_path))
    assert plan.memory is not None
    for region in values["arenas"]["regions"]:
        drawn = {values["texts"][name] for box in region["boxes"] for name in box[3]}
        lying = {
            name
            for (name, memory), location in plan.memory.locations.items()
            if (memory, location.region) == (region["memory"], region["name"])
        }
        assert lying <= drawn


def test_the_timelines_are_of_one_item_and_of_a_stream(tmp_path: Path) -> None:
    plan = split(branches(2))
    one, stream = values_in(written(plan, tmp_path))["timelines"]
    assert one["kind"] == stream["kind"] == "predicted"
    assert (one["items"], stream["items"]) == (1, 8)
    assert len(one["step"]) == len(plan.steps)
    assert len(stream["step"]) == 8 * len(plan.steps)
    assert any(one["critical"])
    assert one["slack"] == [pytest.approx(s * 1e6, rel=1e-3) for s in pl.simulate(plan).slack_s]


def test_the_predicted_makespan_is_the_end_of_the_last_bar_or_later(tmp_path: Path) -> None:
    plan = split(branches(2))
    one = values_in(written(plan, tmp_path))["timelines"][0]
    last = max(s + d for s, d in zip(one["start"], one["duration"], strict=True))
    assert 0 < last <= pl.simulate(plan).makespan_s * 1e6 + 0.01


def test_a_simulation_stands_in_place_of_the_plans_own_predictions(tmp_path: Path) -> None:
    plan = split(branches(1))
    plan.save_html(tmp_path / "r.html", simulation=pl.simulate(plan, items=5))
    (timeline,) = values_in((tmp_path / "r.html").read_text())["timelines"]
    assert timeline["items"] == 5


def test_a_simulation_brings_its_own_costs(tmp_path: Path) -> None:
    plan = split(branches(1))
    plan.save_html(tmp_path / "r.html", simulation=pl.simulate(plan, faster={"Add": 1e-3}))
    slower, usual = values_in((tmp_path / "r.html").read_text()), values_in(written(plan, tmp_path))
    row = usual["nodes"]["name"].index("block0/add")
    cost_us = usual["nodes"]["cost_us"][row]
    assert slower["nodes"]["cost_us"][row] == pytest.approx(1000 * cost_us, rel=1e-3)


def test_a_profile_brings_measured_times(tmp_path: Path) -> None:
    plan = split(branches(2))
    profile = profiled(plan, {"x": np.ones((64, 32), "float32")}, 3)
    values = values_in(written(plan, tmp_path, profile))
    assert values["timelines"][-1]["kind"] == "measured"
    assert len(values["timelines"][-1]["step"]) == 3 * len(plan.steps)
    times = zip(values["nodes"]["min_us"], values["nodes"]["measured_us"], strict=True)
    assert all(0 < least <= mean for least, mean in times)
    assert set(values["nodes"]["runs"]) == {3}
    assert len(values["profile"]["latency_us"]) == 3
    assert [name for name, _ in values["profile"]["busy"]] == list(profile.busy_s)
    means = {name: us for name, us, _, _ in values["profile"]["spent"]}
    assert means["compute"] == pytest.approx(profile.attribution().compute_ns / 3e3, rel=1e-3)
    assert sum(share for _, _, share, _ in values["profile"]["spent"]) == pytest.approx(1, abs=0.01)
    assert any(next(t for t in values["timelines"] if t["kind"] == "measured")["critical"])


def test_a_profile_alone_makes_a_report(tmp_path: Path) -> None:
    plan = split(branches(1))
    profiled(plan, {"x": np.ones((64, 32), "float32")}, 2).save_html(tmp_path / "p.html")
    values = values_in((tmp_path / "p.html").read_text())
    assert values["graph"] is None
    assert sorted(values["nodes"]["name"]) == sorted(node.name for node in plan.graph.nodes)


def test_a_long_profile_shows_its_last_items(tmp_path: Path) -> None:
    plan = pl.plan(branches(1))
    profile = profiled(plan, {"x": np.ones((64, 32), "float32")}, 3)
    many = pl.Profile(profile.records * 4000, profile.nodes)
    timeline = values_in(written(plan, tmp_path, many))["timelines"][-1]
    assert "of 12000 items" in timeline["title"]
    assert timeline["item"][-1] == 11_999


def test_symbolic_plans_have_a_graph_but_no_times(tmp_path: Path) -> None:
    builder = pl.GraphBuilder("open")
    builder.output("y", builder.op("Relu", builder.input("x", "float32", ("n", 2)), name="relu"))
    values = values_in(written(pl.plan(builder.build()), tmp_path))
    assert values["nodes"]["name"] == ["relu"]
    assert values["timelines"] == []
    assert values["arenas"] is None


def test_nodes_of_nested_graphs_have_rows_too(tmp_path: Path) -> None:
    builder = pl.GraphBuilder("loops")
    trips = builder.input("trips", "int64", ())
    loop = builder.op("Loop", trips, None, builder.input("x", "float32", (3,)),
                      body=doubling_body(), name="loop", outputs=2)  # fmt: skip
    builder.output("y", loop[0])
    values = values_in(written(pl.plan(builder.build()), tmp_path))
    assert "loop/double" in values["nodes"]["name"]


def test_a_graph_that_hands_its_input_on_has_a_report(tmp_path: Path) -> None:
    builder = pl.GraphBuilder("nothing")
    builder.output("y", builder.input("x", "float32", (2,)))
    values = values_in(written(pl.plan(builder.build()), tmp_path))
    assert [values["texts"][op] for op in values["nodes"]["op"]] == ["Identity"]


def test_nothing_to_report_is_refused(tmp_path: Path) -> None:
    from plait.scheduler.reports.html import write_html

    with pytest.raises(pl.PlanError, match="nothing to report"):
        write_html(tmp_path / "r.html")


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(pl.PlanError, match=r"cannot write .*folder\.html") as caught:
        split(branches(1)).save_html(tmp_path / "no" / "folder.html")
    assert "folder.html" in str(caught.value)


def test_the_same_plan_gives_the_same_page(tmp_path: Path) -> None:
    assert written(split(branches(3)), tmp_path) == written(split(branches(3)), tmp_path)


@pytest.mark.extended
def test_five_thousand_nodes_fit_in_three_megabytes(large_plan: pl.Plan, tmp_path: Path) -> None:
    pages: list[str] = []
    calls = calls_of(lambda: pages.append(written(large_plan, tmp_path)))
    assert calls < CALLS_PER_NODE * len(large_plan.graph.nodes)
    (page,) = pages
    assert len(page) < 3_000_000
    values = values_in(page)
    assert len(values["nodes"]["name"]) == 5000
    assert values["graph"]["collapsed"]


def test_what_is_no_profile_is_refused(tmp_path: Path) -> None:
    wrong: Any = 3
    with pytest.raises(pl.PlanError, match="expected a Profile, got int"):
        pl.plan(branches(2)).save_html(tmp_path / "page.html", profile=wrong)


def test_a_node_tells_the_attributes_that_are_not_their_defaults(tmp_path: Path) -> None:
    b = pl.GraphBuilder("attributes")
    x = b.input("x", "float32", (4, 4))
    b.output("y", x.softmax(axis=0, name="across").softmax(name="along"))
    page = values_in(written(pl.plan(b.build(), passes=()), tmp_path))
    told = dict(zip(page["nodes"]["name"], page["nodes"]["attributes"], strict=True))
    assert [page["texts"][one] for one in told["across"]] == ["axis=0"]
    assert told["along"] is None


@pytest.mark.parametrize("in_flight", [1, 2])
def test_the_verdict_compares_what_was_measured_with_what_was_predicted(
    tmp_path: Path, in_flight: int
) -> None:
    plan = split(branches(2), max_in_flight=in_flight)
    profile = profiled(plan, {"x": np.ones((64, 32), "float32")}, 4)
    verdict = values_in(written(plan, tmp_path, profile))["verdict"]
    alone = format_seconds(pl.simulate(plan).makespan_s)
    assert verdict.startswith(f"Predicted {alone} for an item, measured ")
    assert "figures of npu, cpu are built in" in verdict or "figures of cpu are built in" in verdict
    assert "plait profile --costs FILE" in verdict


def test_items_that_were_under_way_at_once_are_judged_by_their_rate(tmp_path: Path) -> None:
    plan = split(branches(2), max_in_flight=2)
    profile = profiled(plan, {"x": np.ones((64, 32), "float32")}, 2)
    beside = replace(profile, records=profile.records * 2)  # each beside one of the same times
    verdict = values_in(written(plan, tmp_path, beside))["verdict"]
    predicted = rate_text(pl.simulate(plan, items=8).items_per_s)
    assert verdict.startswith(f"Predicted {predicted}, measured {rate_text(beside.items_per_s)}")


def test_costs_that_were_measured_are_said_to_be(tmp_path: Path) -> None:
    plan = pl.plan(branches(2), passes=())
    profile = profiled(plan, {"x": np.ones((64, 32), "float32")}, 4)
    known = pl.plan(branches(2), passes=(), costs=pl.Costs.from_profile(profile, plan))
    verdict = values_in(written(known, tmp_path, profile))["verdict"]
    assert verdict.endswith("figures were measured.")


def test_without_a_profile_there_is_no_verdict(tmp_path: Path) -> None:
    assert values_in(written(pl.plan(branches(1)), tmp_path))["verdict"] is None


def test_what_an_item_waits_for_before_it_runs_has_bars(tmp_path: Path) -> None:
    b = pl.GraphBuilder("varying")
    b.output("y", b.input("x", "float32", ("n",)).relu())
    plan = pl.plan(b.build())
    with pl.BlockingSession(plan) as session:
        for length in (3, 3, 5):
            session.run({"x": np.ones(length, "float32")})
        profile = session.profile()
    fixed = plan.for_shapes({"x": (3,)})
    page = values_in(written(fixed, tmp_path, profile))
    timeline = next(one for one in page["timelines"] if one["kind"] == "measured")
    lane = timeline["lanes"].index("before it ran")
    steps = page["step_tables"][timeline["steps"]]
    shown = [
        (timeline["item"][bar], page["texts"][steps["name"][timeline["step"][bar]]])
        for bar in range(len(timeline["lane"]))
        if timeline["lane"][bar] == lane
    ]
    assert {item for item, kind in shown if kind == "planning"} == {0, 2}
    assert min(timeline["start"]) >= 0
