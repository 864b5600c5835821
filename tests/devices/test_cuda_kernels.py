"""Kernels for any array module, called as CuPy must be called: what runs, what is denied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import plait as pl
import pytest
from cupy_double import CupyDouble
from plait.devices.cpu import CpuDevice
from plait.devices.cuda import support as cuda_support
from plait.devices.cuda.device import CudaDevice
from plait.devices.cuda.driver import CupyArrays
from plait.devices.errors import DeviceLostError
from plait.devices.kernels.registry import list_kernels
from plait.graph.core.ir import Graph

from .rig import Rig

Make = Callable[[pl.GraphBuilder, str], str]
RNG = np.random.default_rng(7)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


SHAPE = (2, 4, 6, 6)
CASES: dict[str, Make] = {
    "Add": lambda b, x: b.op("Add", x, floats(4, 1, 1)),
    "AveragePool": lambda b, x: b.op("AveragePool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    "Clip": lambda b, x: b.op("Clip", x, -0.5, 0.5),
    "Concat": lambda b, x: b.op("Concat", x, x, axis=1),
    "Conv": lambda b, x: b.op("Conv", x, floats(3, 4, 3, 3), floats(3), pads=[1, 1, 1, 1]),
    "Conv, grouped": lambda b, x: b.op("Conv", x, floats(4, 1, 3, 3), group=4, strides=[2, 2]),
    "ConvTranspose": lambda b, x: b.op("ConvTranspose", x, floats(4, 3, 2, 2), strides=[2, 2]),
    "Erf": lambda b, x: b.op("Erf", x),
    "Gather": lambda b, x: b.op("Gather", x, np.array([1, 0, -1]), axis=2),
    "Gelu": lambda b, x: b.op("Gelu", x),
    "LayerNormalization": lambda b, x: b.op("LayerNormalization", x, floats(6), floats(6)),
    "MatMul": lambda b, x: b.op("MatMul", x, floats(6, 5)),
    "MatMul of stacks": lambda b, x: b.op("MatMul", x, floats(4, 6, 5)),
    "MaxPool": lambda b, x: b.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]),
    "Pad": lambda b, x: b.op("Pad", x, np.array([0, 0, 1, 1, 0, 0, 1, 1]), mode="reflect"),
    "ReduceMean": lambda b, x: b.op("ReduceMean", x, np.array([2, 3])),
    "Resize": lambda b, x: b.op("Resize", x, None, np.array([1, 1, 2, 1.5], "f"), mode="linear"),
    "Slice": lambda b, x: b.op("Slice", x, np.array([1]), np.array([5]), np.array([2])),
    "Softmax": lambda b, x: b.op("Softmax", x),
    "Transpose": lambda b, x: b.op("Transpose", x, perm=[0, 2, 3, 1]),
    "Where": lambda b, x: b.op("Where", b.op("Greater", x, 0.0), x, floats(6)),
}
DENIED: dict[str, Make] = {
    "CumProd": lambda b, x: b.op("CumProd", x, np.array(1)),
    "CumSum": lambda b, x: b.op("CumSum", x, np.array(1)),
    "Pow": lambda b, x: b.op("Pow", b.op("Cast", x, to="int32"), np.array(2)),
    "Trilu": lambda b, x: b.op("Trilu", x, np.array(1)),
}


def graph_of(make: Make) -> Graph:
    b = pl.GraphBuilder()
    b.output("y", make(b, b.input("x", "float32", SHAPE)))
    return b.build()


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_gives_what_the_cpus_gives(name: str) -> None:
    graph, x, double = graph_of(CASES[name]), {"x": floats(*SHAPE)}, CupyDouble(seed=1)
    with Rig(CpuDevice(), graph) as rig:
        expected = rig.run(x)["y"]
    device = double.device()
    for node in graph.nodes:
        assert device.supports(node, graph.call(node)).ok
    with Rig(device, graph) as rig:
        found = rig.run(x)["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", DENIED)
def test_a_kernel_that_reads_on_the_host_is_denied(name: str) -> None:
    graph = graph_of(DENIED[name])
    node = next(node for node in graph.nodes if node.op == name)
    support = CudaDevice(compiler=None).supports(node, graph.call(node))
    assert not support.ok
    assert "on each run" in support.reason


@pytest.fixture
def device() -> Iterator[CudaDevice]:
    made = CupyDouble().device()
    yield made
    made.close()


# Fails when a kernel no longer reads: what it says of the host can go then.
@pytest.mark.parametrize("name", DENIED)
def test_what_is_denied_would_indeed_read_on_the_host(name: str, device: CudaDevice) -> None:
    with pytest.raises(DeviceLostError) as raised:
        Rig(device, graph_of(DENIED[name]))
    reasons = []
    error: BaseException | None = raised.value
    while error is not None:
        reasons.append(str(error))
        error = error.__cause__
    assert "a kernel reads its arrays on the host" in reasons


def test_every_denied_operator_exists() -> None:
    assert cuda_support.DENIED.keys() <= {kernel.op for kernel in list_kernels()}


def test_the_array_module_is_cupys_but_for_what_cupy_lacks() -> None:
    double = CupyDouble()
    arrays = CupyArrays(double)
    assert arrays.float32 is np.float32
    assert arrays.exp is arrays.exp  # found once
    with pytest.raises(AttributeError, match="errstate"):
        arrays.errstate  # noqa: B018
