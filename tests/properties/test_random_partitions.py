"""Random networks on random partitions compute what ONNX Runtime, which knows no plan, computes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plait.formats import to_onnx
from plait.graph.values.tensor import Array

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

ASKED = os.environ.get("PLAIT_RANDOM_GRAPHS")
EXAMPLES = int(ASKED or 15)
DEVICES = ("cpu", "ort", "sim:a", *(("worker:0", "compiled", "formal") if ASKED else ()))
"""Where nodes may go: what takes seconds to start, or to compile, where many graphs are wanted."""
SHAPES = ((1, 3, 6, 6), (2, 4, 5, 5), (3, 4), (4, 4), (2, 3, 5), (6,), ())

UNARY = ("Relu", "Neg", "Abs", "Sigmoid", "Tanh", "Softplus", "Erf", "LeakyRelu", "HardSwish")
BINARY = ("Add", "Sub", "Mul", "Max", "Min")
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2")


class Network:
    """A network that is being drawn; all values stay small, so all devices are close."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        self.builder = pl.GraphBuilder("random")
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.inputs: list[str] = []

    def one_of(self, values: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(list(values)))

    def input(self) -> None:
        shape = self.one_of(SHAPES)
        name = self.builder.input(f"x{len(self.inputs)}", "float32", shape)
        self.shapes[name] = shape
        self.inputs.append(name)

    def weight(self, *shape: int) -> Array:
        scale = max(int(np.prod(shape[1:])), 1) ** -0.5
        made: Array = (self.random.standard_normal(shape) * scale).astype("float32")
        return made

    def add(self, op: str, *inputs: Any, shape: Sequence[int], **attributes: Any) -> str:
        name: str = self.builder.op(op, *inputs, **attributes)
        self.shapes[name] = tuple(shape)
        return name

    def step(self) -> None:
        x = self.one_of(sorted(self.shapes, key=str))
        shape = self.shapes[x]
        kinds: list[Callable[[str, tuple[int, ...]], Any]] = [self.unary, self.binary, self.reshape]
        if shape:
            kinds += [self.reduction, self.concat, self.softmax, self.slice, self.transpose]
        if len(shape) == 2:
            kinds += [self.product] * 2
        if len(shape) == 4:
            kinds += [self.convolution, self.convolution, self.pool]
        self.one_of(kinds)(x, shape)

    def unary(self, x: str, shape: tuple[int, ...]) -> None:
        self.add(self.one_of(UNARY), x, shape=shape)

    def binary(self, x: str, shape: tuple[int, ...]) -> None:
        alike = [name for name, other in self.shapes.items() if other in (shape, ())]
        y = self.one_of([*alike, self.weight(*shape[-1:]), np.float32(0.5)])
        y = self.add("Tanh", y, shape=self.shapes[y]) if isinstance(y, str) else y
        self.add(self.one_of(BINARY), x, y, shape=shape)

    def reshape(self, x: str, shape: tuple[int, ...]) -> None:
        size = int(np.prod(shape))
        target = self.one_of([(size,), (1, size), (*shape, 1)])
        self.add("Reshape", x, np.array(target, np.int64), shape=target)

    def reduction(self, x: str, shape: tuple[int, ...]) -> None:
        axis = self.draw(st.integers(0, len(shape) - 1))
        kept = (*shape[:axis], 1, *shape[axis + 1 :])
        self.add(self.one_of(REDUCTIONS), x, np.array([axis]), keepdims=True, shape=kept)

    def concat(self, x: str, shape: tuple[int, ...]) -> None:
        alike = [name for name, other in self.shapes.items() if other == shape]
        joined = (2 * shape[0], *shape[1:])
        if joined[0] < 64:
            self.add("Concat", x, self.one_of(alike), axis=0, shape=joined)

    def softmax(self, x: str, shape: tuple[int, ...]) -> None:
        self.add("Softmax", x, axis=-1, shape=shape)

    def slice(self, x: str, shape: tuple[int, ...]) -> None:
        if shape[-1] > 1:
            ends, axis = np.array([shape[-1] - 1]), np.array([len(shape) - 1])
            self.add("Slice", x, np.array([0]), ends, axis, shape=(*shape[:-1], shape[-1] - 1))

    def transpose(self, x: str, shape: tuple[int, ...]) -> None:
        order = self.draw(st.permutations(range(len(shape))))
        self.add("Transpose", x, perm=tuple(order), shape=[shape[axis] for axis in order])

    def product(self, x: str, shape: tuple[int, ...]) -> None:
        n = self.one_of([1, 3, 4])
        weight = self.weight(n, shape[1]).T.copy()
        if self.draw(st.booleans()):
            self.add("MatMul", x, weight, shape=(shape[0], n))
        else:
            self.add("Gemm", x, weight, self.weight(n), alpha=0.5, shape=(shape[0], n))

    def convolution(self, x: str, shape: tuple[int, ...]) -> None:
        batch, channels, height, width = shape
        made = self.one_of([1, 4])
        if channels > 16:
            return
        weight, bias = self.weight(made, channels, 3, 3), self.weight(made)
        pads = (1, 1, 1, 1)
        self.add("Conv", x, weight, bias, pads=pads, shape=(batch, made, height, width))

    def pool(self, x: str, shape: tuple[int, ...]) -> None:
        *rest, height, width = shape
        if min(height, width) > 1:
            op = self.one_of(["MaxPool", "AveragePool"])
            self.add(op, x, kernel_shape=(2, 2), shape=(*rest, height - 1, width - 1))


@st.composite
def networks(draw: st.DrawFn) -> pl.Graph:
    """Draw a network of float32."""
    network = Network(draw)
    for _ in range(draw(st.integers(1, 3))):
        network.input()
    for _ in range(draw(st.integers(1, 20))):
        network.step()
    made = [name for name in network.shapes if name not in network.inputs]
    if not made:
        network.unary(network.inputs[0], network.shapes[network.inputs[0]])
        made = list(network.shapes)[-1:]
    fetched = draw(st.lists(st.sampled_from(made), max_size=2, unique=True))
    for index, name in enumerate(dict.fromkeys([*fetched, made[-1]])):
        network.builder.output(f"y{index}", name)
    return network.builder.build()


def by_runtime(graph: pl.Graph, items: Sequence[Mapping[str, Array]]) -> list[list[Array]]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(to_onnx(graph).SerializeToString(), options)
    wanted = {one.name for one in session.get_inputs()}
    fed = [{name: x for name, x in item.items() if name in wanted} for item in items]
    return [session.run(list(graph.outputs), one) for one in fed]


@pytest.fixture(scope="module")
def devices() -> list[str]:
    return [name for name in DEVICES if pl.devices.probe(name).found]


UNHURRIED = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=UNHURRIED)
@given(graph=networks(), data=st.data())
def test_random_networks_compute_the_same_on_any_partition(
    devices: list[str], graph: pl.Graph, data: st.DataObject
) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    pins = {node.name: str(random.choice(devices)) for node in graph.nodes}
    at_once = data.draw(st.integers(1, 3))
    items = [
        {
            name: random.standard_normal(graph.tensors[name].static_shape).astype("float32")
            for name in graph.inputs
        }
        for _ in range(3)
    ]
    plan = pl.plan(graph, devices, pin=pins, max_in_flight=at_once)
    with pl.BlockingSession(plan) as session:
        results = [item.outputs for item in session.stream(items)]
    for found, wanted in zip(results, by_runtime(graph, items), strict=True):
        for name, expected in zip(graph.outputs, wanted, strict=True):
            np.testing.assert_allclose(found[name], expected, rtol=2e-4, atol=2e-5, err_msg=name)
