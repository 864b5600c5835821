from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import plait as pl
import pytest
from patience import WAIT_S
from plait.devices.memory import host_arena
from plait.devices.ort.device import OrtDevice
from plait.devices.ort.program import OrtProgram
from plait.devices.ort.session import list_fed, widen
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array

WEIGHTS = np.arange(1024, dtype=np.float32).reshape(4, 256)


@pytest.fixture
def device() -> Iterator[OrtDevice]:
    made = OrtDevice()
    made.open()
    yield made
    made.close()


def flattened(rows: int, weights: Array = WEIGHTS, axis: int = 1) -> Graph:
    """Return the product of rows and weights, as one row: a constant follows from the length."""
    b = pl.GraphBuilder("flattened")
    product = b.op("MatMul", b.input("x", "float32", (rows, 4)), b.constant(weights, "weights"))
    soft = b.op("Softmax", product, axis=axis)
    target = b.constant(np.array([1, rows * 256]), "target")
    b.output("y", b.op("Reshape", soft, target))
    return b.build()


def compiled(device: OrtDevice, graph: Graph) -> OrtProgram:
    specs = {name: graph.tensors[name] for name in (*graph.inputs, *graph.outputs)}
    views = {n: device.view(host_arena(spec.nbytes), 0, spec) for n, spec in specs.items()}
    program = device.compile(graph, views)
    assert isinstance(program, OrtProgram)
    return program


def run(device: OrtDevice, program: OrtProgram, x: Array) -> Array:
    program._views["x"].array[...] = x
    device.submit(program).wait(WAIT_S)
    return program._views["y"].array


def test_lengths_that_differ_are_open_and_constants_that_follow_from_them_are_inputs() -> None:
    shared = widen(flattened(2), flattened(3))
    assert shared is not None
    assert shared.inputs == ("x", "target")
    assert shared.tensors["x"].shape is not None
    assert isinstance(shared.tensors["x"].shape[0], str)
    assert shared.tensors["x"].shape[1] == 4
    assert list_fed(shared, flattened(5)) == ("target",)


def test_what_serves_a_graph_already_is_left_as_it_is() -> None:
    model = flattened(2)
    assert widen(model, flattened(2)) is model
    shared = widen(model, flattened(3))
    assert shared is not None
    assert widen(shared, flattened(7)) is shared


@pytest.mark.parametrize(
    "other", [flattened(3, WEIGHTS + 1), flattened(3, axis=0), flattened(3).extract((), "none")]
)
def test_other_weights_attributes_and_nodes_have_models_of_their_own(other: Graph) -> None:
    assert widen(flattened(2), other) is None


def test_shapes_share_a_model_and_each_has_its_own_result(device: OrtDevice) -> None:
    graphs = [flattened(rows) for rows in (2, 3, 5)]
    programs = [compiled(device, graph) for graph in graphs]
    first, *models = (program._session.model for program in programs)
    assert first is not None
    assert models == [first.wider] * 2
    for program, rows in zip(programs, (2, 3, 5), strict=True):
        x = np.random.default_rng(rows).random((rows, 4), np.float32)
        shifted = x @ WEIGHTS - (x @ WEIGHTS).max(1, keepdims=True)
        wanted = np.exp(shifted) / np.exp(shifted).sum(1, keepdims=True)
        found = run(device, program, x)
        assert found.shape == (1, rows * 256)
        assert np.allclose(found.reshape(rows, 256), wanted, atol=1e-5)


def test_devices_of_one_thread_share_a_model_and_others_do_not(device: OrtDevice) -> None:
    graph, second = flattened(2), OrtDevice("ort:second")
    second.open()
    model = compiled(device, graph)._session.model
    assert model is not None
    kept = compiled(device, graph), compiled(second, graph)
    assert kept[0]._session.model is kept[1]._session.model
    second.close()
    wide = OrtDevice("ort:wide", threads=2)
    wide.open()
    assert compiled(wide, graph)._session.model is not kept[0]._session.model
    wide.close()


async def test_items_of_any_length_within_bounds_have_the_right_results() -> None:
    b = pl.GraphBuilder("scaled")
    x = b.input("x", "float32", ("n", 4))
    b.output("y", b.op("Reshape", b.op("MatMul", x, WEIGHTS), np.array([-1])))
    plan = pl.plan(b.build(), ["ort"], bounds={"n": 16})
    async with pl.Session(plan) as session:
        for n in (16, 3, 1, 9, 16):
            rows = np.random.default_rng(n).random((n, 4), np.float32)
            found = await session.run({"x": rows})
            assert np.allclose(found["y"], (rows @ WEIGHTS).ravel(), rtol=1e-5)
