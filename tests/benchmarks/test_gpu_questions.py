"""The questions of `make gpu`, asked at toy sizes of OpenCL on a processor and of a fake GPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import plait as pl
import pytest
from cuda_core_double import CudaCoreDouble
from cupy_double import CupyDouble
from double_worker import WorkersDouble, worker_on
from foreign_arrays import Library
from gpu import (
    about,
    broken,
    completion,
    conformance,
    facts,
    first,
    integers,
    interop,
    memory,
    models,
    partition,
    peers,
    pipelines,
    rounding,
    sanitizer,
    shares,
    workers,
)
from gpu.question import Experiment, Row, fact, failed, rows_of, text_of
from gpu.target import Target, Unsuitable
from onnx import TensorProto, helper
from plait.devices.cuda.device import CudaDevice
from plait.devices.opencl.device import OpenClDevice
from plait.graph.values.extras import get_install_command
from plait.graph.values.tensor import Array
from pocl import pocl_device
from real_models import RealModel

QUESTIONS = {
    "first": (
        *("one_kernel", "kernels_in_a_row", "products", "other_threads"),
        *("page_locking", "sessions", "opening"),
    ),
    "launching": ("submissions",),
    "completion": ("sessions", "measuring", "programs", "items"),
    "copies": ("planned",),
    "rounding": ("bits",),
    "integers": ("definitions",),
    "products": ("rates", "around_zero_points", "errors"),
    "overlap": ("frames", "beside_numpy"),
    "convolutions": ("shapes",),
    "attention": ("shapes",),
    "models": ("models",),
    "samples": ("reductions", "movement", "networks", "products"),
    "partition": ("branches",),
}
"""What any device can be asked, by module."""

WITH_OPTIONS = (
    *("first", "launching", "completion", "copies", "products", "attention", "overlap", "samples"),
)
"""Where a CUDA device is given options, or its streams and graphs matter."""

OF_TIME = ("first", "launching", "completion", "copies", "overlap", "partition")
"""At toy sizes their figures mean nothing."""


def on_pocl() -> Target:
    device = pocl_device()
    return Target("opencl:0", lambda: OpenClDevice(device=device), small=True)


def on_double() -> Target:
    pocl_device()  # runs the kernels
    return Target("cuda:0", CupyDouble(3).generating, is_cuda=True, small=True)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RealModel:
    """A model of two nodes in the place of the real ones."""
    weights = np.linspace(-1, 1, 12, dtype=np.float32)
    tensor = helper.make_tensor("w", TensorProto.FLOAT, (4, 3), weights)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", 4))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("n", 3))],
        [tensor],
    )
    path = tmp_path / "tiny.onnx"
    opset = [helper.make_opsetid("", 17)]
    path.write_bytes(
        helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    )
    model = RealModel(lambda: path, lambda n: {"x": np.ones((n, 4), np.float32)}, (1,))

    def chosen(_: Target) -> Mapping[str, RealModel]:
        return {"tiny": model}

    monkeypatch.setattr(models, "chosen", chosen)
    monkeypatch.setattr(partition, "chosen", chosen)
    monkeypatch.setattr(memory, "chosen", chosen)
    return model


def asked(target: Target, name: str) -> list[Row]:
    module = import_module(f"gpu.{name}")
    return list(rows_of([getattr(module, each) for each in QUESTIONS[name]], target))


@pytest.mark.slow
@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.usefixtures("tiny")
def test_an_opencl_device_answers(name: str) -> None:
    rows = asked(on_pocl(), name)
    assert rows
    assert [row for row in rows if row.status == "failed"] == []
    if name not in OF_TIME:
        assert [text_of(row) for row in rows if row.met is False] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_OPTIONS)
def test_a_cuda_device_answers(name: str) -> None:
    rows = asked(on_double(), name)
    assert rows
    assert [row for row in rows if row.status == "failed"] == []


@pytest.mark.parametrize("target", [on_pocl, on_double], ids=["OpenCL", "CUDA"])
def test_the_end_of_an_item_is_told_by_the_device(
    target: Callable[[], Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However soon that is: what ends too early to tell is another test's."""
    monkeypatch.setattr(completion, "SURELY_LATER_NS", -(10**12))
    rows = list(rows_of([completion.sessions], target()))
    assert [(row.unit, row.status) for row in rows] == 2 * [("µs", "measured")]
    assert rows[0].note == "of 5 items 0 were over too early"
    monkeypatch.setattr(completion, "SURELY_LATER_NS", 10**12)
    (row,) = rows_of([completion.sessions], target())
    assert (row.value, row.status) == ("of 5 items 5 were over too early", "left out")


def test_an_item_that_was_over_when_its_last_step_was_queued_is_not_counted() -> None:
    queued, most = 1_000_000, completion.SURELY_LATER_NS
    ended = [queued + after for after in (-1000, 0, most - 1, most, 5 * most)]
    ends = [completion.End(queued, each, each + 1000 * n) for n, each in enumerate(ended)]
    assert completion.late_us(ends) == [3.0, 4.0]


@pytest.mark.usefixtures("tiny")
def test_a_real_model_is_compared_with_onnxruntime_where_that_is() -> None:
    pytest.importorskip("onnxruntime")
    rows = {row.what: row for row in asked(on_pocl(), "models")}
    assert rows["tiny, batch 1: difference to onnxruntime on the CPU"].met
    assert "plait's rate, of onnxruntime on the CPU's" in rows
    assert rows["tiny, batch 1: onnxruntime on the GPU"].status == "left out"


@pytest.mark.extended
def test_pipelines_by_plait_and_by_hand_have_the_same_results() -> None:
    pytest.importorskip("rapidocr_onnxruntime", reason="the networks come with it")
    rows = list(rows_of([pipelines.pipelines], Target.named("ort", small=True)))
    assert [row for row in rows if row.status == "failed"] == []
    same = [row.met for row in rows if "results as" in row.what]
    assert same == [True, True]


@pytest.mark.usefixtures("tiny")
def test_what_sessions_take_of_a_gpu_is_what_was_planned() -> None:
    pocl_device()
    target = WithRuntime("cuda:0", CupyDouble(3).generating, is_cuda=True, small=True)
    rows = {row.what: row for row in rows_of([memory.sessions], target)}
    assert [row for row in rows.values() if row.status == "failed"] == []
    assert rows["tiny: used, less what is planned"].met
    assert rows["tiny: used"].value
    assert rows["tiny: kept when it is closed"].value == 0


def test_the_copy_between_two_gpus_is_one_step() -> None:
    pocl_device()
    double = CupyDouble(3, devices=2)
    second = partial(double.generating, "cuda:1")
    rows = list(
        rows_of([peers.copies], Target("cuda:0", double.generating, True, False, True, second))
    )
    assert [row for row in rows if row.status == "failed"] == []
    assert rows[0].met
    assert rows[0].note == "handed on: cuda:0 to cuda:1"


def test_shares_of_a_gpu_are_compared_with_the_whole() -> None:
    pocl_device()
    double = CupyDouble(3)
    core = CudaCoreDouble(double)

    def make_share(of: str) -> CudaDevice:
        return double.generating(f"cuda:0/{of}", core=core)

    target = Target("cuda:0", double.generating, is_cuda=True, small=True, make_share=make_share)
    rows = list(rows_of([shares.halves, shares.small_beside_large], target))
    assert [row for row in rows if row.status == "failed"] == []
    assert len(rows) == 9


def test_one_gpu_has_no_peer() -> None:
    double = CupyDouble()
    second = partial(double.generating, "cuda:1")
    (row,) = rows_of([peers.copies], Target("cuda:0", double.generating, make_next=second))
    assert (row.value, row.status) == ("there is one GPU", "left out")


class WithArrays(Target):
    """A fake GPU, and a library that makes arrays there."""

    def cupy(self) -> Any:
        device = self.make()
        assert isinstance(device, CudaDevice)
        assert isinstance(device._cupy, CupyDouble)
        library = Library(device._cupy)
        return SimpleNamespace(asarray=library.array, asnumpy=lambda array: array._cells.copy())


class WithRuntime(Target):
    """A fake GPU that can be asked for its free memory."""

    def cupy(self) -> Any:
        device = self.make()
        assert isinstance(device, CudaDevice)
        return device._cupy


def test_arrays_that_lie_on_the_gpu_are_compared_with_those_of_the_host() -> None:
    pocl_device()
    target = WithArrays("cuda:0", CupyDouble(3).generating, is_cuda=True, small=True)
    rows = list(rows_of([interop.cupys], target))
    assert [row for row in rows if row.status == "failed"] == []
    assert rows[-1] == fact("CuPy: 0 MiB: the results are right", True, True)


class WithWorkers(Target):
    """A fake GPU whose memory workers open, and CuPy as they have it."""

    def cupy(self) -> Any:
        return WorkersDouble()


@pytest.mark.extended
def test_functions_in_a_process_of_their_own_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    pocl_device()
    double = CupyDouble(3, shares=True)
    monkeypatch.setattr(workers, "CudaWorkerDevice", partial(worker_on, double))
    target = WithWorkers("cuda:0", double.generating, is_cuda=True, small=True)
    rows = list(rows_of([workers.opening, workers.calls, workers.items], target))
    assert [row for row in rows if row.status == "failed" or row.value == "no"] == []
    assert len(rows) == 12


def test_wrong_bits_do_not_pass_for_right_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    off = rounding.expected

    def expected(**given: Array) -> dict[str, Array]:
        return {op: np.nextafter(value, 9, dtype=value.dtype) for op, value in off(**given).items()}

    monkeypatch.setattr(rounding, "expected", expected)
    rows = {row.what: row for row in asked(on_pocl(), "rounding")}
    assert rows["Add, plait's kernels: share of numpy's bits"].met is False


def test_an_operator_that_differs_from_its_definition_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    defined = pl.run

    def run(*given: object, **options: object) -> dict[str, Array]:
        return {name: ~value for name, value in defined(*given, **options).items()}  # type: ignore[call-overload]

    monkeypatch.setattr(pl, "run", run)
    monkeypatch.setattr(integers, "CASES", integers.CASES[:1])
    rows = asked(on_pocl(), "integers")
    assert [row.what for row in rows if row.met is False] == [
        "cvm.relu: elements that differ",
        "operators with the bits of their definitions, of 1",
    ]


@pytest.mark.parametrize(
    "experiment",
    [first.cupy_alone, first.libraries, first.cold_threads, first.arrays_on_the_gpu,
     first.compiling, facts.launches, facts.hidden_allocations, facts.threads,
     facts.other_libraries, facts.marks,
     interop.cupys, interop.torchs, workers.opening, workers.calls, workers.items,
     broken.illegal_writes, broken.sessions_without_another_device,
     broken.sessions_beside_the_cpu, broken.killed_processes, conformance.tests, memory.sessions,
     sanitizer.kernels],
)  # fmt: skip
def test_what_only_cupy_knows_is_left_out_elsewhere(experiment: Experiment) -> None:
    (row,) = rows_of([experiment], on_double())
    assert row.status == "left out"


WORKS, DIFFERS = (json.dumps(Row("y", value, at_most=1).to_dict()) for value in (1, 2))


@pytest.mark.parametrize(
    ("said", "row"),
    [
        (f"{WORKS}\n========= ERROR SUMMARY: 0 errors", Row("t, s: errors", 0, at_most=0)),
        (
            f"{WORKS}\n========= Invalid __global__ write of size 4\n"
            "========= ERROR SUMMARY: 2 errors",
            Row("t, s: errors", 2, at_most=0, note="Invalid __global__ write of size 4"),
        ),
        (f"{WORKS}\n========= RACECHECK SUMMARY: 3 hazards", Row("t, s: errors", 3, at_most=0)),
        (
            f"{WORKS}\n{DIFFERS}\n========= ERROR SUMMARY: 0 errors",
            Row("t, s: errors", 1, at_most=0, note="y: 2"),
        ),
        (
            "========= ERROR SUMMARY: 0 errors",
            Row("t, s: errors", "========= ERROR SUMMARY: 0 errors", status="failed"),
        ),
        ("Device not supported", Row("t, s: errors", "Device not supported", status="failed")),
    ],
)
def test_what_compute_sanitizer_says_is_understood(said: str, row: Row, tmp_path: Path) -> None:
    program = tmp_path / "compute-sanitizer"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\n")
    program.chmod(0o755)
    assert sanitizer._checked(str(program), "t", "s", "cuda:0") == row


def test_an_experiment_that_fails_is_a_row_and_the_next_one_follows() -> None:
    def broken_one(_: Target) -> Iterator[Row]:
        """The first."""
        yield Row("before", 1)
        raise ValueError("no luck\nat all")

    def unsuitable(_: Target) -> Iterator[Row]:
        """The second."""
        yield from ()
        raise Unsuitable("not here")

    def whole(_: Target) -> Iterator[Row]:
        yield Row("after", 2)

    target = Target("cpu", lambda: pytest.fail("nobody asked for it"))
    assert list(rows_of([broken_one, unsuitable, whole], target)) == [
        Row("before", 1),
        Row("The first.", "ValueError: no luck", status="failed"),
        Row("The second.", "not here", status="left out"),
        Row("after", 2),
    ]


@pytest.mark.parametrize(
    ("row", "met"),
    [
        (Row("a", 1.0), None),
        (Row("a", 1.0, at_most=1), True),
        (Row("a", 1.1, at_most=1), False),
        (Row("a", 0.9, at_least=0.9), True),
        (Row("a", 0.8, at_least=0.9), False),
        (fact("a", True, True), True),
        (fact("a", False, True), False),
        (failed("a", ValueError("b")), None),
    ],
)
def test_a_row_says_whether_a_goal_is_met(row: Row, met: bool | None) -> None:
    assert row.met is met


def test_without_cupy_the_answer_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    (row,) = rows_of([about.device], Target.named("cuda:0", small=True))
    missing = f"DeviceUnavailableError: CuPy is not installed; {get_install_command('cuda')}"
    assert (row.status, row.value) == ("failed", f"{missing}, on a machine with an NVIDIA GPU")


def test_a_device_says_what_it_is() -> None:
    (row,) = rows_of([about.device], on_pocl())
    assert (row.what, row.value) == ("device", "opencl:0")
    assert "Portable Computing Language" in row.note
