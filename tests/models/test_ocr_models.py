"""Three real models, whole and split over devices, streamed: ONNX Runtime's numbers, in order."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from openvino_anywhere import require_openvino
from plait.devices.device import Support
from plait.devices.worker.device import WorkerDevice
from plait.graph.core.ir import Graph, Node
from plait.graph.core.operator import Call
from plait.graph.values.tensor import Array
from plait.scheduler.planner.memory.verify import verify_memory

onnxruntime = pytest.importorskip("onnxruntime")

TOLERANCE = 1e-4
IN_FLIGHT = 4
STRIDE = 9
"""Of the inputs that are streamed: one has a batch of one, the other of two."""
# Heights and widths: any multiple of 32 for detection; a fixed height for the other two.
SIZES = {
    "ch_PP-OCRv4_det_infer": [(32 * (1 + i % 4), 32 * (1 + i // 4)) for i in range(16)],
    "ch_ppocr_mobile_v2.0_cls_infer": [(48, 32 + 16 * i) for i in range(16)],
    "ch_PP-OCRv4_rec_infer": [(48, 24 + 16 * i) for i in range(16)],
}
WAYS = (
    "pinned",
    "alternating",
    "by support",
    "ort alone",
    "ort and cpu",
    "openvino, cpu and worker",
)


class Lacking(WorkerDevice):
    """A worker without some kernels, so that support alone splits the graph."""

    lacks = ("Conv", "MatMul", "Resize")

    def supports(self, node: Node, call: Call) -> Support:
        if node.op in self.lacks:
            return Support(False, f"no kernel for {node.op!r} on this worker")
        return super().supports(node, call)


def model(name: str) -> Path:
    spec = find_spec("rapidocr_onnxruntime")
    if spec is None or spec.origin is None:
        pytest.skip("pip install rapidocr-onnxruntime==1.4.4")
    return Path(spec.origin).parent / "models" / f"{name}.onnx"


def inputs(name: str) -> list[Array]:
    random = np.random.default_rng(len(name))
    return [
        random.standard_normal((1 + index % 2, 3, *size)).astype(np.float32)
        for index, size in enumerate(SIZES[name])
    ]


@cache
def reference(name: str) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model(name), options, providers=["CPUExecutionProvider"])
    return [session.run(None, {"x": x})[0] for x in inputs(name)[::STRIDE]]


def split(graph: Graph, way: str) -> tuple[list[Any], dict[str, str]]:
    """Return devices and pins for one way of splitting a graph."""
    names = [node.name for node in graph.nodes]
    if way == "openvino, cpu and worker":
        require_openvino()
        # Where lengths are open cpu has the arithmetic with shapes too, which is of 64 bits.
        third = len(names) // 3
        elsewhere = dict.fromkeys(names[third : third + 5], "cpu")
        return ["ort:openvino", "cpu", "worker:0"], {
            **elsewhere,
            **dict.fromkeys(names[-third : 5 - third], "worker:0"),
        }
    if way == "ort alone":
        return ["ort"], {}
    if way == "ort and cpu":
        return ["ort", "cpu"], dict.fromkeys(names[len(names) // 3 : len(names) // 2], "cpu")
    if way == "pinned":
        third = len(names) // 3
        return ["cpu", "worker:0"], dict.fromkeys(names[third : 2 * third], "worker:0")
    if way == "alternating":
        return ["cpu", "worker:0"], {n: ("cpu", "worker:0")[i % 2] for i, n in enumerate(names)}
    return [Lacking("worker:0"), "cpu"], {}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SIZES)
async def test_a_split_model_streams_the_reference_results_in_order(name: str, way: str) -> None:
    """A shape of each batch size, in turns: planning for one takes longer than running it."""
    graph = pl.load(model(name))
    devices, pins = split(graph, way)
    plan = pl.plan(graph, devices, pin=pins, max_in_flight=IN_FLIGHT)
    assert {subgraph.device for subgraph in plan.subgraphs} == set(plan.devices)
    fed = inputs(name)[::STRIDE] * 3
    got: list[Array] = []
    async with pl.Session(plan) as session:
        async with session.stream({"x": x} for x in fed) as results:
            async for item in results:
                got.append(item[graph.outputs[0]])  # noqa: PERF401 - an error has a place
    for index, (mine, theirs) in enumerate(zip(got, reference(name) * 3, strict=True)):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=TOLERANCE, err_msg=f"item {index}")


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_a_model_whose_shapes_are_known_is_whole_on_openvino(name: str) -> None:
    require_openvino()
    graph = pl.load(model(name))
    for x, theirs in zip(inputs(name)[::STRIDE], reference(name), strict=True):
        plan = pl.plan(graph, ["ort:openvino"], shapes={"x": x.shape})
        assert len(plan.subgraphs) == 1
        mine = pl.run(plan, {"x": x})[graph.outputs[0]]
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["pinned", "ort and cpu"])
@pytest.mark.parametrize("name", SIZES)
def test_the_memory_plan_of_a_split_model_is_sound(name: str, way: str) -> None:
    graph = pl.load(model(name))
    devices, pins = split(graph, way)
    shape = inputs(name)[3].shape
    verify_memory(pl.plan(graph, devices, pin=pins, shapes={"x": shape}, max_in_flight=IN_FLIGHT))
