"""The command line with plans: options of planning, saved plans, differences, costs, pages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import plait as pl
import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from command_line import assert_mistake, plait
from plait.cli.parsing import parse_limits, parse_size
from plait.devices.device import Device
from plait.devices.model import DeviceModel
from plait.graph.values.errors import PlaitError
from plait.scheduler.costs import measure as measuring


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model of symbolic shapes, and plans of it."""
    b = pl.GraphBuilder("affine")
    x, y = b.input("x", "float32", ("n", 3)), b.input("y", "float32", ("n", 3))
    b.output("sum", b.op("Add", x, y, name="add"))
    b.output("twice", b.op("Add", x, x, name="double"))
    graph = b.build()
    pl.save(graph, tmp_path / "affine.plait")
    pl.plan(graph).save(tmp_path / "symbolic.plan")
    pl.plan(graph, shapes={"x": (2, 3)}, max_in_flight=2).save(tmp_path / "two.plan")
    np.save(tmp_path / "x.npy", np.arange(6, dtype=np.float32).reshape(2, 3))
    return tmp_path


# saved plans


def test_a_plan_is_saved_shown_and_run(folder: Path) -> None:
    saved = plait(folder, "plan", "affine.plait", "--shape", "x=2,3", "--save", "a.plan")
    assert (saved.exit_code, saved.stderr) == (0, "note: wrote a.plan\n")
    shown = plait(folder, "plan", "a.plan")
    assert shown.stdout == saved.stdout
    ran = plait(folder, "run", "a.plan", "--input", "x=x.npy", "--input", "y=x.npy", "--json")
    assert json.loads(ran.stdout)["outputs"][0]["max"] == 10


def test_a_saved_plan_streams_with_as_many_in_flight_as_it_is_for(folder: Path) -> None:
    result = plait(folder, "stream", "two.plan", "--count", "3")
    assert result.exit_code == 0
    assert "up to 2 in flight" in result.stdout


def test_a_plan_with_bounds_is_saved_and_runs_what_is_within(folder: Path) -> None:
    shown = plait(folder, "plan", "affine.plait", "--bound", "n=64", "--save", "a.plan")
    assert "planned for all shapes with n 1 to 64" in shown.stdout
    assert plait(folder, "plan", "a.plan").stdout == shown.stdout
    files = ("--input", "x=x.npy", "--input", "y=x.npy", "--json")
    for model in (("a.plan",), ("affine.plait", "--bound", "n=2:64")):
        ran = plait(folder, "run", *model, *files)
        assert json.loads(ran.stdout)["outputs"][0]["max"] == 10
        profiled = plait(folder, "profile", *model, *files, "--repeat", "3")
        assert json.loads(profiled.stdout)["items"] == 3
    refused = plait(folder, "run", "affine.plait", "--bound", "n=3:64", *files)
    assert_mistake(refused, "input 'x' has n = 2, out of its bounds 3 to 64")


def test_a_plan_of_open_shapes_says_by_which_option_they_are_given(folder: Path) -> None:
    told = plait(folder, "plan", "affine.plait").stdout
    assert "when the input shapes are known (--shape x=64,3" in told
    report = pl.plan(pl.load(folder / "affine.plait")).report()
    assert "when the input shapes are known (shapes={'x': (64, 3)" in report


def test_lengths_that_are_computed_are_bounded(folder: Path) -> None:
    b = pl.GraphBuilder("kept")
    places = b.op("NonZero", b.input("x", "float32", (4,)), name="kept")
    b.output("y", b.op("Neg", places))
    pl.save(b.build(), folder / "kept.plait")
    shown = plait(folder, "plan", "kept.plait")
    assert "bound it by --bound 'kept.shape[1]=64'" in shown.stdout
    bound = ("--bound", "kept.shape[1]=2", "--save", "kept.plan")
    assert "0 to 2, planned once" in plait(folder, "plan", "kept.plait", *bound).stdout
    for kept in (0, 2, 3):
        np.save(folder / "kept.npy", (np.arange(4) < kept).astype(np.float32))
        ran = plait(folder, "run", "kept.plan", "--input", "x=kept.npy", "--json")
        if kept < 3:
            assert json.loads(ran.stdout)["outputs"][0]["shape"] == [1, kept]
        else:
            assert_mistake(ran, "'kept.shape[1]' is 3 here, out of its bounds 0 to 2")


def test_random_inputs_are_the_largest_within_bounds(folder: Path) -> None:
    options = ("--bound", "n=5:7", "--input", "random", "--json")
    ran = plait(folder, "run", "affine.plait", *options)
    assert [one["shape"] for one in json.loads(ran.stdout)["outputs"]] == [[7, 3], [7, 3]]
    streamed = plait(folder, "stream", "affine.plait", "--bound", "n=5:7", "--count", "3")
    assert streamed.exit_code == 0


@pytest.mark.parametrize("text", ["n", "n=", "=3", "n=a", "n=3:", "n=:3", "n=-3", "n=1:2:3"])
def test_a_bound_that_is_none_is_a_mistake(folder: Path, text: str) -> None:
    result = plait(folder, "plan", "affine.plait", "--bound", text)
    assert_mistake(result, f"--bound '{text}' is not SYMBOL=LARGEST")


def test_a_plan_over_replicas_is_saved_and_streams(folder: Path) -> None:
    options = ("--shape", "x=2,3", "--devices", "cpu:0..1", "--max-in-flight", "3")
    shown = plait(folder, "plan", "affine.plait", *options, "--save", "a.plan").stdout
    assert "cpu:0 stands for cpu:0 to cpu:1" in shown
    streamed = plait(folder, "stream", "a.plan", "--count", "3", "--devices", "cpu:0..1")
    assert "up to 4 in flight" in streamed.stdout
    other = plait(folder, "run", "a.plan", "--devices", "cpu:0")
    assert_mistake(other, "the plan is for cpu:0..1, not for cpu:0", "leave --devices out")


def test_a_saved_plan_is_profiled(folder: Path) -> None:
    assert "3 items" in plait(folder, "profile", "two.plan", "--repeat", "3").stdout


def test_a_saved_plan_of_symbolic_shapes_takes_shapes(folder: Path) -> None:
    assert "float32[n, 3]" in plait(folder, "plan", "symbolic.plan").stdout
    assert "float32[7, 3]" in plait(folder, "plan", "symbolic.plan", "--shape", "x=7,3").stdout


def test_options_that_say_what_a_saved_plan_says_are_taken(folder: Path) -> None:
    arguments = ("--devices", "cpu", "--max-in-flight", "2", "--shape", "x=2,3")
    more = ("--strategy", "auto", "--objective", "latency")
    assert plait(folder, "plan", "two.plan", *arguments, *more).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--devices", "worker:0"], ["the plan is for cpu, not for worker:0"]),
        (["--max-in-flight", "3"], ["for 2 items in flight, not for 3"]),
        (["--shape", "x=4,3"], ["'x' must be float32[2, 3]"]),
        (["--pin", "add=cpu"], ["--pin: that is decided in a saved plan"]),
        (["--strategy", "preference"], ["--strategy: that is decided"]),
        (["--objective", "throughput", "--costs", "c.json"], ["--objective, --costs: that"]),
        (["--max-subgraphs", "2"], ["--max-subgraphs: that is decided"]),
        (["--memory-limit", "cpu=1GB"], ["--memory-limit: that is decided"]),
    ],
)
def test_options_that_contradict_a_saved_plan_are_refused(
    folder: Path, arguments: Sequence[str], expected: Sequence[str]
) -> None:
    assert_mistake(plait(folder, "plan", "two.plan", *arguments), *expected)


def test_a_damaged_plan_is_a_mistake(folder: Path) -> None:
    data = bytearray((folder / "two.plan").read_bytes())
    data[60] ^= 1
    (folder / "two.plan").write_bytes(data)
    result = plait(folder, "run", "two.plan", "--input", "random")
    assert_mistake(result, "checksum is wrong", "two.plan")


def test_a_plan_cannot_be_converted(folder: Path) -> None:
    assert_mistake(plait(folder, "convert", "two.plan", "o.plait"), "saved plan, not a graph")


# differences


def test_the_difference_to_a_saved_plan_is_shown(folder: Path) -> None:
    arguments = ("--shape", "x=2,3", "--devices", "worker:0,cpu", "--strategy", "preference")
    result = plait(folder, "plan", "affine.plait", *arguments, "--diff", "two.plan")
    assert result.exit_code == 0
    assert "cpu to worker:0: add, double" in result.stdout
    shown = plait(folder, "plan", "affine.plait", *arguments, "--diff", "two.plan", "--json")
    found = json.loads(shown.stdout)
    assert [one["node"] for one in found["moved"]] == ["add", "double"]
    assert (found["before"]["max_in_flight"], found["after"]["max_in_flight"]) == (2, 1)


def test_a_plan_does_not_differ_from_itself(folder: Path) -> None:
    assert "they decide the same" in plait(folder, "plan", "two.plan", "--diff", "two.plan").stdout


# options of planning


def test_options_of_planning_reach_the_plan(folder: Path) -> None:
    options = ("--strategy", "preference", "--objective", "throughput", "--shape", "x=2,3")
    more = ("--max-subgraphs", "3", "--memory-limit", "cpu=1MiB", "--memory-limit", "host=2 MB")
    result = plait(folder, "plan", "affine.plait", *options, *more, "--json")
    shown = json.loads(result.stdout)
    assert (shown["decision"]["strategy"], shown["decision"]["objective"]) == (
        "preference",
        "throughput",
    )
    assert shown["memory_limits"] == {"cpu": 1 << 20, "host": 2_000_000}


def test_a_memory_limit_that_cannot_be_kept_is_refused(folder: Path) -> None:
    arguments = ("--shape", "x=1000,3", "--memory-limit", "cpu=4KB")
    assert_mistake(plait(folder, "plan", "affine.plait", *arguments), "memory_limits['cpu']")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--strategy", "luck"], ["'luck' is not one of"]),
        (["--max-subgraphs", "0"], ["--max-subgraphs"]),
        (["--memory-limit", "cpu"], ["is not NAME=SIZE"]),
        (["--memory-limit", "cpu=2 GiBs"], ["is not NAME=SIZE"]),
        (["--memory-limit", "gpu=2GiB"], ["names 'gpu'"]),
        (["--costs", "gone.json"], ["gone.json"]),
        (["--save", "gone/a.plan"], ["no folder 'gone'"]),
        (["--html", "gone/a.html"], ["no folder 'gone'"]),
        (["--diff", "affine.plait"], ["this is a graph, not a plan"]),
        (["--nodes", "--dot"], ["choose one"]),
    ],
)
def test_a_mistake_of_planning_gets_one_message(
    folder: Path, arguments: Sequence[str], expected: Sequence[str]
) -> None:
    assert_mistake(plait(folder, "plan", "affine.plait", *arguments), *expected)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("4096", 4096), ("2GiB", 2 << 30), ("1.5 MB", 1_500_000), ("8kib", 8192), ("0b", 0)],
)
def test_sizes_are_read(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "-1", "GB", "1.5.2MB", "1e9", "2 GB GB", "nan", "\u0661"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(PlaitError, match="NAME=SIZE"):
        parse_limits([f"cpu={text}"])


# costs and pages


def test_a_profile_adds_to_a_file_of_costs_that_plans_are_made_by(folder: Path) -> None:
    arguments = ("--repeat", "2", "--shape", "x=50,3", "--costs", "costs.json")
    for _ in range(2):  # the second time the file is read first
        assert plait(folder, "profile", "affine.plait", *arguments).exit_code == 0
    assert pl.Costs.load(folder / "costs.json").nodes["cpu"]
    options = ("--costs", "costs.json", "--shape", "x=50,3", "--json")
    shown = json.loads(plait(folder, "plan", "affine.plait", *options).stdout)
    assert shown["nodes"]["add"]["options"][0]["basis"] == "measured"


def test_costs_of_symbolic_models_are_those_of_what_was_fed(folder: Path) -> None:
    arguments = ("--repeat", "2", "--input", "x=x.npy", "--costs", "costs.json")
    assert plait(folder, "profile", "affine.plait", *arguments).exit_code == 0
    assert pl.Costs.load(folder / "costs.json").nodes["cpu"]


def test_plans_and_profiles_are_written_as_pages(folder: Path) -> None:
    result = plait(folder, "plan", "two.plan", "--html", "plan.html")
    assert result.stderr == "note: wrote plan.html\n"
    assert plait(folder, "profile", "two.plan", "--html", "profile.html").exit_code == 0
    for name in ("plan.html", "profile.html"):
        assert "affine" in (folder / name).read_text()


@pytest.fixture
def known_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What measuring finds is made up: what a device does beside other work is not asked here."""

    def found(devices: Mapping[str, Device], *, note: object) -> pl.Costs:
        model = DeviceModel(flops_per_s=5e10, bytes_per_s=7e9)
        return pl.Costs(models=dict.fromkeys(devices, model))

    monkeypatch.setattr(measuring, "measure", found)


def test_devices_are_measured_and_that_is_added_to_a_file(folder: Path, known_speed: None) -> None:
    result = plait(folder, "devices", "cpu", "--measure", "costs.json")
    assert result.exit_code == 0
    assert "50 Gflop/s" in result.stdout
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == ["note", "note"]
    assert "measuring cpu" in result.stderr
    assert pl.Costs.load(folder / "costs.json").models["cpu"].flops_per_s == 5e10
    arguments = ("--costs", "costs.json", "--shape", "x=2,3")
    assert plait(folder, "plan", "affine.plait", *arguments).exit_code == 0


def test_devices_are_measured_without_a_file_too(folder: Path, known_speed: None) -> None:
    (status,) = json.loads(plait(folder, "devices", "cpu", "--json", "--measure").stdout)
    assert status["model"]["bytes_per_s"] == 7e9


def test_a_device_in_the_place_of_a_file_is_a_mistake(folder: Path) -> None:
    result = plait(folder, "devices", "--measure", "cpu")
    assert_mistake(result, "'cpu' is a device", "plait devices cpu --measure")
    assert_mistake(plait(folder, "devices", "--measure", "gone/c.json"), "no folder 'gone'")


def test_profiles_of_a_saved_plan_are_added_to_costs_again_and_again(folder: Path) -> None:
    for repeat in ("2", "3"):
        result = plait(folder, "profile", "two.plan", "--repeat", repeat, "--costs", "c.json")
        assert result.exit_code == 0
        assert result.stderr.endswith("note: wrote c.json\n")  # a busy machine is noted before it
    (operator,) = pl.Costs.load(folder / "c.json").nodes["cpu"]
    assert operator.op == "Add"


def test_a_damaged_file_of_costs_is_refused_before_anything_is_measured(folder: Path) -> None:
    (folder / "c.json").write_text("{}")
    for command in (
        ("devices", "cpu", "--measure", "c.json"),
        ("profile", "two.plan", "--costs", "c.json"),
    ):
        assert_mistake(plait(folder, *command), "not in the format 'plait costs'")
    assert (folder / "c.json").read_text() == "{}"


def test_costs_that_cannot_be_told_apart_are_refused_before_anything_runs(tmp_path: Path) -> None:
    b = pl.GraphBuilder("picked")
    b.output("y", b.op("NonZero", b.input("x", "float32", (4,))))
    pl.save(b.build(), tmp_path / "picked.plait")
    result = plait(tmp_path, "profile", "picked.plait", "--costs", "c.json")
    assert_mistake(result, "shapes depend on values")


@pytest.mark.parametrize("option", ["--save", "--html"])
def test_folders_are_no_files_to_write(folder: Path, option: str) -> None:
    assert_mistake(plait(folder, "plan", "affine.plait", option, "."), "'.' is a folder")


@pytest.mark.parametrize(
    ("option", "first", "second"),
    [
        ("--pin", "add=cpu", "add=worker:0"),
        ("--shape", "x=2,3", "x=4,3"),
        ("--memory-limit", "cpu=1GB", "cpu=2GB"),
    ],
)
def test_an_option_says_one_thing_of_a_name(
    folder: Path, option: str, first: str, second: str
) -> None:
    arguments = ("plan", "affine.plait", option, first)
    name = first.split("=")[0]
    result = plait(folder, *arguments, option, second)
    assert_mistake(result, f"{option} says two things of '{name}'")
    assert plait(folder, *arguments, option, first).exit_code == 0
