"""``plait tune``: tables, files, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import plait as pl
import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from command_line import assert_mistake, plait


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model of a symbolic length."""
    b = pl.GraphBuilder("affine")
    x = b.input("x", "float32", ("n", 3))
    b.output("y", b.op("Relu", b.op("Add", x, x, name="add"), name="rectify"))
    pl.save(b.build(), tmp_path / "affine.plait")
    return tmp_path


def test_the_fastest_plan_and_the_costs_are_kept(folder: Path) -> None:
    options = ("--shape", "x=8,3", "--costs", "costs.json", "--output", "best.plan")
    done = plait(folder, "tune", "affine.plait", "--devices", "cpu", *options)
    assert done.exit_code == 0, done.output
    assert done.stderr == "note: wrote costs.json\nnote: wrote best.plan\n"
    assert "all on cpu" in done.stdout
    costs = pl.Costs.load(folder / "costs.json")
    plan = pl.load_plan(folder / "best.plan")
    assert plan.fed.tensors["x"].shape == (8, 3)
    assert costs.basis("cpu", plan.graph, plan.graph.nodes[0]) == "measured"
    again = plait(folder, "run", "best.plan", "--input", "random")
    assert again.exit_code == 0, again.output


def test_the_file_of_costs_grows(folder: Path) -> None:
    pl.Costs(hops={("a", "b"): 0.25}).save(folder / "costs.json")
    done = plait(folder, "tune", "affine.plait", "--costs", "costs.json")
    assert done.exit_code == 0, done.output
    assert pl.Costs.load(folder / "costs.json").hops["a", "b"] == 0.25


def test_what_was_tried_as_json(folder: Path) -> None:
    asked = ("--objective", "throughput", "--max-in-flight", "2", "--json")
    done = plait(folder, "tune", "affine.plait", "--shape", "x=8,3", *asked)
    found = json.loads(done.stdout)
    first = found["trials"][0]
    assert (first["name"], first["in_flight"]) == ("all on cpu", 2)
    assert first["items_per_s"] > 0
    assert found["chosen"] in [trial["name"] for trial in found["trials"]]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("--strategy", "preference"), "--strategy: tuning decides that"),
        (("--fetch", "y"), "--fetch: the whole model is tuned"),
        (("--output", "nowhere/best.plan"), "there is no folder"),
        (("--devices", "nothing"), "there is no device 'nothing'"),
    ],
)
def test_mistakes_of_the_command_line(folder: Path, arguments: tuple[str, ...], fault: str) -> None:
    assert_mistake(plait(folder, "tune", "affine.plait", *arguments), fault)


def test_a_saved_plan_is_not_tuned(folder: Path) -> None:
    pl.plan(pl.load(folder / "affine.plait")).save(folder / "a.plan")
    assert_mistake(plait(folder, "tune", "a.plan"), "nothing left to decide")
