from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import plait as pl
import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner, Result
from plait import devices
from plait.cli import cli
from plait.devices.errors import DeviceError
from plait.devices.model import DeviceModel
from plait.scheduler.costs import Costs

GPU = {"flops_per_s": 5e13, "bytes_per_s": 3e12, "copy_bytes_per_s": 5e10, "copy_latency_s": 5e-6}


@pytest.fixture(autouse=True)
def forget_devices() -> Iterator[None]:
    """Devices that a command makes known last as long as its process."""
    yield
    with suppress(DeviceError):
        devices.unregister("gpu")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A chain of large operators, with a file of a GPU's model beside it."""
    builder = pl.GraphBuilder("chain")
    last = builder.input("x", "float32", ("n", 1000))
    for _ in range(8):
        last = builder.op("Relu", builder.op("Tanh", last))
    builder.output("y", last)
    pl.save(builder.build(), tmp_path / "chain.plait")
    (tmp_path / "gpu.json").write_text(json.dumps(GPU))
    return tmp_path / "chain.plait"


def simulate(model: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["simulate", str(model), "--shape", "x=1000,1000", *arguments])


def figures(model: Path, *arguments: str) -> dict[str, object]:
    answer = simulate(model, "--json", *arguments)
    assert answer.exit_code == 0, answer.output
    found: dict[str, object] = json.loads(answer.stdout)
    return found


def makespan(model: Path, *arguments: str) -> float:
    found = figures(model, *arguments)["makespan_s"]
    assert isinstance(found, float)
    return found


def test_the_table_says_how_long_it_takes(model: Path) -> None:
    answer = simulate(model, "--items", "5")
    assert answer.exit_code == 0
    assert "5 items, up to 1 in flight" in answer.output
    assert "cpu: busy" in answer.output


def test_keys_are_counted(model: Path) -> None:
    assert figures(model, "--items", "5", "--keys", "2")["keys"] == 2
    assert figures(model, "--items", "5")["keys"] == 0


def test_a_device_that_is_not_here_is_planned_for(model: Path) -> None:
    gpu = f"gpu={model.parent / 'gpu.json'}"
    found = figures(model, "--devices", "gpu", "--model", gpu)
    assert isinstance(found["busy"], dict)
    assert "gpu" in found["busy"]
    assert makespan(model, "--devices", "gpu", "--model", gpu) < makespan(model)


def test_a_device_that_is_here_can_be_taken_for_another(model: Path) -> None:
    (model.parent / "cpu.json").write_text(json.dumps({**GPU, "copy_queues": 0}))
    assert makespan(model, "--model", f"cpu={model.parent / 'cpu.json'}") < makespan(model)


def test_a_faster_operator_shortens_it(model: Path) -> None:
    assert makespan(model, "--faster", "Relu=2") < makespan(model)


def test_measured_costs_are_believed(model: Path) -> None:
    Costs.of({"cpu": devices.find("cpu")}).save(model.parent / "costs.json")
    costs = "--costs", str(model.parent / "costs.json")
    assert makespan(model, *costs) == makespan(model)


def test_the_trace_is_written(model: Path) -> None:
    trace = model.parent / "trace.json"
    assert simulate(model, "--trace", str(trace)).exit_code == 0
    assert json.loads(trace.read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "gpu"), "is not NAME=FILE"),
        (("--model", "gpu=nowhere.json"), "there is no such file"),
        (("--faster", "Relu"), "is not OP=FACTOR"),
        (("--faster", "Relu=fast"), "is not OP=FACTOR"),
        (("--faster", "Relu=-1"), "is not OP=FACTOR"),
        (("--faster", "Conv=2"), "no operator, node or step 'Conv'"),
        (("--devices", "gpu"), "there is no device 'gpu'"),
    ],
)
def test_mistakes_are_explained(model: Path, arguments: tuple[str, ...], message: str) -> None:
    answer = simulate(model, *arguments)
    assert answer.exit_code == 2
    assert message in answer.output
    assert "Traceback" not in answer.output


def test_unknown_shapes_are_asked_for(model: Path) -> None:
    answer = CliRunner().invoke(cli, ["simulate", str(model)])
    assert answer.exit_code == 2
    assert "fix: plan for the shapes of inputs: --shape x=64,1000" in answer.output


def test_a_stream_over_replicas_is_simulated(model: Path) -> None:
    arguments = "--devices", "cpu:0..1", "--items", "8", "--max-in-flight", "4", "--json"
    answer = simulate(model, *arguments)
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    assert set(found["busy"]) == {"cpu:0", "cpu:1"}
    assert found["max_in_flight"] == 4


def test_a_saved_plan_is_simulated_as_it_is(model: Path) -> None:
    plan = pl.plan(pl.load(model), shapes={"x": (1000, 1000)}, max_in_flight=2)
    plan.save(model.parent / "chain.plan")
    answer = CliRunner().invoke(cli, ["simulate", str(model.parent / "chain.plan"), "--json"])
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["max_in_flight"] == 2
    assert json.loads(answer.stdout)["makespan_s"] == pl.simulate(plan).makespan_s


def test_a_model_of_a_device_that_is_not_planned_for_is_refused(model: Path) -> None:
    answer = simulate(model, "--model", f"gpu={model.parent / 'gpu.json'}")
    assert answer.exit_code == 2
    assert "'gpu', which is not among the devices" in answer.stderr


def test_a_saved_plan_is_asked_about_other_costs_and_items_in_flight(model: Path) -> None:
    graph = pl.load(model)
    plan = pl.plan(graph, shapes={"x": (1000, 1000)}, max_in_flight=2)
    saved, costs = model.parent / "chain.plan", model.parent / "costs.json"
    plan.save(saved)
    slow = DeviceModel(flops_per_s=1e6, bytes_per_s=1e6)
    plan.costs.with_models({"cpu": slow}).save(costs)
    assert makespan(saved, "--costs", str(costs)) > 10 * makespan(saved)
    assert figures(saved, "--max-in-flight", "5")["max_in_flight"] == 5


def test_an_operator_has_one_factor(model: Path) -> None:
    answer = simulate(model, "--faster", "Relu=2", "--faster", "Relu=3")
    assert answer.exit_code == 2
    assert "--faster says two things of 'Relu'" in answer.stderr


def test_a_plan_is_made_for_hardware_that_is_not_here(model: Path) -> None:
    arguments = ("--shape", "x=1000,1000", "--devices", "gpu,cpu")
    gpu = ("--model", f"gpu={model.parent / 'gpu.json'}")
    shown = CliRunner().invoke(cli, ["plan", str(model), *arguments, *gpu, "--json"])
    assert shown.exit_code == 0, shown.output
    nodes = json.loads(shown.stdout)["nodes"].values()
    assert {node["device"] for node in nodes} == {"gpu"}


def test_a_saved_plan_is_not_decided_anew_for_a_model(model: Path) -> None:
    saved = model.parent / "chain.plan"
    pl.plan(pl.load(model), shapes={"x": (10, 1000)}).save(saved)
    gpu = ("--model", f"cpu={model.parent / 'gpu.json'}")
    shown = CliRunner().invoke(cli, ["plan", str(saved), *gpu])
    assert shown.exit_code == 2
    assert "--model: that is decided in a saved plan" in shown.stderr
