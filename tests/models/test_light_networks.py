"""The nine networks that come with onnx, with weights made up here: ONNX Runtime's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import plait as pl
import pytest
from onnx import numpy_helper
from onnx_models import by_runtime
from plait.graph.formats.onnx import read_model
from plait.graph.values.tensor import Array

pytestmark = pytest.mark.slow

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NAMES = sorted(file.stem for file in FOLDER.glob("*.onnx"))
TOLERANCE = 1e-4
SPLIT = ("light_inception_v1", "light_shufflenet", "light_squeezenet")
_NUMBERS = np.random.default_rng(0).standard_normal(1_000_003, np.float32)
"""Weights are cut from these, again and again: a prime number, so that no two rows are alike."""


WIDTH, NARROWED = 4096, 512
"""Fully connected nodes are made narrower: half a gigabyte of weights would show no more."""


def weights(node: Any, shape: tuple[int, ...], roles: dict[str, str]) -> Array:
    """Return numbers that keep a network's activations within bounds, as He initialization does."""
    numbers = np.resize(_NUMBERS, shape)
    role = roles.get(node.output[0], "")
    if role in ("scale", "var"):
        return 1 + 0.2 * np.tanh(numbers)
    if len(shape) < 2:
        return 0.1 * numbers
    return numbers * np.float32(np.sqrt(2 / np.prod(shape[1:])))


def model(name: str) -> Any:
    """Return a network with weights, which puts out what goes into its last operator too.

    Its probabilities may be all but alike, or one of them all: the scores before them tell more.
    """
    proto = onnx.load(FOLDER / f"{name}.onnx")
    graph = proto.graph
    shapes = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    roles = {
        name: role
        for node in graph.node
        if node.op_type == "BatchNormalization"
        for role, name in zip(("scale", "bias", "mean", "var"), node.input[1:], strict=True)
    }
    made = [node for node in graph.node if node.op_type == "ConstantOfShape"]
    kept = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    del graph.node[:]
    graph.node.extend(kept)
    for node in made:
        shape = tuple(NARROWED if n == WIDTH else int(n) for n in shapes[node.input[0]])
        values = weights(node, shape, roles)
        graph.initializer.append(numpy_helper.from_array(values, node.output[0]))
    if kept[-1].op_type == "Softmax":
        graph.output.append(onnx.ValueInfoProto(name=kept[-1].input[0]))
    return proto


def image(graph: pl.Graph) -> dict[str, Array]:
    (name,) = graph.inputs
    shape = graph.tensors[name].static_shape
    return {name: np.random.default_rng(1).standard_normal(shape, np.float32)}


def check(graph: pl.Graph, wanted: list[Array], **planned: Any) -> None:
    found = pl.run(pl.plan(graph, **planned), image(graph))
    for name, theirs in zip(graph.outputs, wanted, strict=True):
        error = np.abs(found[name] - theirs).max()
        assert error <= TOLERANCE * np.abs(theirs).max(), name


def test_there_are_nine_networks() -> None:
    assert len(NAMES) == 9


@pytest.mark.parametrize("name", NAMES)
def test_a_network_gives_the_reference_results(name: str) -> None:
    proto = model(name)
    graph = read_model(proto, name)
    wanted = by_runtime(proto, image(graph))
    assert np.std(wanted[-1]) > 1e-3
    check(graph, wanted, devices=["cpu"])
    if name in SPLIT:
        names = [node.name for node in graph.nodes]
        third = len(names) // 3
        for pinned in (names[third : 2 * third], names[::2]):
            pins = dict.fromkeys(pinned, "worker:0")
            check(graph, wanted, devices=["cpu", "worker:0"], pin=pins)
