"""Every operator on every device: what ONNX says, and the same bits wherever it runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import plait as pl
import pytest
from bound import Bound
from every_device import ONCE, Subject, parameters
from onnx_suite import Case, check_like_onnx, suite
from plait.devices import Device
from plait.devices.cpu import CpuDevice
from plait.devices.cuda.device import CudaDevice
from plait.graph.core.ir import Graph
from plait.graph.core.operator import find_operator, list_operators
from plait.graph.core.traits import Part
from plait.graph.operators.bounded_call import CALLS
from plait.graph.operators.control import CONTROL_FLOW
from plait.graph.operators.each import EACH
from plait.graph.operators.fused import FUSED
from plait.graph.operators.reduce_rows import REDUCE_ROWS
from plait.graph.values.dtypes import is_extension
from plait.graph.values.tensor import Array

pytestmark = pytest.mark.slow

Results = Mapping[str, Array]

STATE = ("Variable", "Assign", "After", "Group")

OPERATORS = tuple(
    name
    for name in list_operators()
    if ".graph.operators." in find_operator(name).module
    and find_operator(name).bounded is None
    and not name.startswith("Bounded.")
    and name not in (*CONTROL_FLOW, EACH, FUSED, *CALLS, REDUCE_ROWS, *STATE)
    and (find_operator(name).draws is None or name == "Dropout")
    and not name.startswith("cvm.")
)
"""plait's own with a kernel; other tests may have registered some of theirs.

What draws random numbers is written with Philox; of Dropout there is what drops nothing. Results
within bounds are in test_computed_bounds, exact operators, which ONNX does not have, in
test_cvm_everywhere.
"""

REFUSED_BY_CUDA = {
    "CumProd": "its axis is read by the host on each run",
    "CumSum": "its axis is read by the host on each run",
    "MaxPoolGradient": "CuPy cannot combine scattered updates in all ways and dtypes",
    "MaxUnpool": "cupy.unravel_index has the host check the indices on each run",
    "Philox": "its numbers are drawn by numpy",
    "Pow": "integer exponents are read by the host on each run",
    "RoiAlign": "its regions are read by the host on each run",
    "ScatterElements": "CuPy cannot combine scattered updates in all ways and dtypes",
    "ScatterND": "CuPy cannot combine scattered updates in all ways and dtypes",
    "Trilu": "its k is read by the host on each run",
}
NEITHER_GENERATED = ("RoiAlign", "ScatterElements", "ScatterND")
"""What remains of these on a GPU, which has generated kernels, too; the double has none."""

REFUSED_BY_OPENCL = {
    op: f"no kernel for {op!r} is generated: {find_operator(op).lacks[Part.CODEGEN]}"
    for op in OPERATORS
    if Part.CODEGEN in find_operator(op).lacks
} | {
    "Attention": "an output is left out before another one",
    "ScatterElements": "no kernel is generated for scattered updates that are combined",
    "ScatterND": "no kernel is generated for scattered updates that are combined",
}
REFUSED: dict[str, dict[str, str]] = {
    "cpu": {},
    "worker": {},
    "sim": {},
    "compiled": {},
    "double": REFUSED_BY_CUDA,
    "cuda": {op: REFUSED_BY_CUDA[op] for op in NEITHER_GENERATED},
    "opencl": REFUSED_BY_OPENCL,
}
"""What each kind of device refuses in one case at least, and why."""

_GPU = {"float16": 2e-3, "float32": 2e-5, "float64": 1e-12}
_GPU_SUMS = dict.fromkeys(
    ("Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"), 1e-4
)
LIKE_THE_CPU = {"cuda": _GPU, "opencl": _GPU}
"""Differences to the cpu that are right, relative and absolute; elsewhere bits are the same."""

LESS_LIKE_THE_CPU = {
    "compiled": {"Conv": 1e-5},
    "double": {"Einsum": 1e-12},  # cupy.einsum contracts in an order of its own
    "cuda": _GPU_SUMS,
    "opencl": _GPU_SUMS,
}
"""The same for floats of single operators that sum in another order."""

ENOUGH = {"cuda": 3, "opencl": 1}
"""How many of the last cases will do, where each waits for a compiler; a session runs the first."""

MISSING_FROM_ONNX = (
    "Cofactors",
    "ConvWeightsGradient",
    "GlobalLpPool",
    "MaxPoolGradient",
    "Philox",
)
UNLOADABLE = (
    r"elements of type \w+ are not supported|an input is not a tensor but|the model uses opset 1,"
    r"|operators that are not supported: (Optional|Sequence)|Scan of opset 8"
    # It has no decoder of images, and lacks locales that the machine lacks.
    r"|ONNX Runtime refuses (ImageDecoder|StringNormalizer): "
)


def cases_of(op: str) -> Sequence[Case]:
    return _handwritten(op) if op in MISSING_FROM_ONNX else suite().nodes.get(op, [])


def _handwritten(op: str) -> list[Case]:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((2, 3, 4, 5)).astype(np.float32)
    if op == "ConvWeightsGradient":
        return [_weights_gradient(op, x, rng.standard_normal((2, 2, 3, 4)).astype(np.float32))]
    if op == "Philox":
        return [_words()]
    if op == "MaxPoolGradient":
        return [_pool_gradient(op, x)]
    if op == "Cofactors":
        matrix = x[:, :, :, :4]
        inverse = np.linalg.inv(matrix.astype(np.float64)).swapaxes(2, 3)
        wanted = (np.linalg.det(matrix)[..., None, None] * inverse).astype(np.float32)
        return [Case("cofactors", _single(op, matrix), {"x": matrix}, {"y": wanted})]
    sums = np.abs(x.astype(np.float64) ** 3).sum((2, 3), keepdims=True)
    pooled = np.cbrt(sums).astype(np.float32)
    return [Case("global_lp_pool", _single(op, x, p=3), {"x": x}, {"y": pooled})]


def _words() -> Case:
    """Return the words that numpy's own generator makes."""
    b = pl.GraphBuilder("Philox")
    key = b.input("key", "uint64", (2,))
    shape, given = b.constant(np.array([3, 7])), {"distribution": "integer", "dtype": "uint64"}
    b.output("y", b.op("Philox", key, shape, sequence=9, **given))
    generator = np.random.Philox(key=[5, 9], counter=[0, 6, 0, 0])
    words = generator.random_raw(21).reshape(3, 7)
    return Case("philox", b.build(), {"key": np.array([5, 6], "uint64")}, {"y": words})


def _weights_gradient(op: str, x: Array, dy: Array) -> Case:
    b = pl.GraphBuilder(op)
    names = [b.input(name, part.dtype, part.shape) for name, part in (("x", x), ("dy", dy))]
    b.output("y", b.op(op, *names, kernel_shape=[2, 2]))
    patches = np.lib.stride_tricks.sliding_window_view(x, dy.shape[2:], (2, 3))
    wanted = np.einsum("nfhw,ncijhw->fcij", dy, patches)
    return Case("conv_weights_gradient", b.build(), {"x": x, "dy": dy}, {"y": wanted})


def _pool_gradient(op: str, dy: Array) -> Case:
    """The first and the last cell of each window of 2 by 1 in turn."""
    b = pl.GraphBuilder(op)
    cells = np.arange(240).reshape(2, 3, 4, 2, 5)
    chosen = (np.arange(120) % 2).reshape(dy.shape)
    indices = np.where(chosen, cells[:, :, :, 1], cells[:, :, :, 0])
    names = [b.input("dy", dy.dtype, dy.shape), b.input("indices", "int64", dy.shape)]
    shape = np.array([2, 3, 8, 5])
    b.output("y", b.op(op, *names, shape, kernel_shape=[2, 1], strides=[2, 1]))
    wanted = np.stack([dy * (1 - chosen), dy * chosen], 3).reshape(shape).astype(np.float32)
    return Case("max_pool_gradient", b.build(), {"dy": dy, "indices": indices}, {"y": wanted})


def _single(op: str, x: Array, **attributes: Any) -> Graph:
    b = pl.GraphBuilder(op)
    b.output("y", b.op(op, b.input("x", x.dtype, x.shape), **attributes))
    return b.build()


@pytest.fixture(scope="module", params=parameters(ONCE))
def subject(request: pytest.FixtureRequest) -> Subject:
    """Return each kind of device in turn."""
    assert isinstance(request.param, Subject)
    return request.param


class Reference:
    """What the cpu makes of cases, each computed once."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._known: dict[str, Results] = {}

    def results(self, case: Case) -> Results:
        if case.name not in self._known:
            self._known[case.name] = run(self._device, case)
        return self._known[case.name]


@pytest.fixture(scope="module")
def reference() -> Iterator[Reference]:
    device = CpuDevice()
    device.open()
    yield Reference(device)
    device.close()


def run(device: Device, case: Case) -> Results:
    with Bound(device, case.graph) as bound:
        return bound.run(case.inputs)


@pytest.fixture(scope="module")
def ran(subject: Subject, device: Device) -> Callable[[Case], Results]:
    """Return what yields a device's results of a case.

    PoCL takes a tenth of a second for each program, however few kernels it has: there is one.
    """
    if subject.kind != "opencl":
        return partial(run, device)
    cases = [case for op in OPERATORS for case in compared(subject, device, cases_of(op))]
    with Bound(device, side_by_side(cases)) as bound:
        found = bound.run(inputs_of(cases))
    known = {case.name: results_of(case, found) for case in cases}
    return lambda case: known[case.name]


def compared(subject: Subject, device: Device, cases: Sequence[Case]) -> Sequence[Case]:
    """Return the cases that a device is held against the cpu by: of those that it runs."""
    supported = [case for case in cases if not refusals(device, case.graph)]
    return supported[-ENOUGH.get(subject.kind, 0) :]


def refusals(device: Device, graph: Graph) -> dict[str, str]:
    """Return why the device does not run a graph, by operator."""
    answers = {node.op: device.supports(node, graph.call(node)) for node in graph.nodes}
    return {op: answer.reason for op, answer in answers.items() if not answer.ok}


def check_like_the_cpu(case: Case, kind: str, found: Results, wanted: Results) -> None:
    """Compare bits, or numbers where sums are known to be computed in another order."""
    less = LESS_LIKE_THE_CPU.get(kind, {})
    least = max([less.get(node.op, 0.0) for node in case.graph.nodes])
    for name, expected in wanted.items():
        got, dtype = found[name], expected.dtype
        tolerance = max(LIKE_THE_CPU.get(kind, {}).get(dtype.name, 0.0), least)
        if tolerance and dtype.kind == "f":
            np.testing.assert_allclose(got, expected, tolerance, tolerance, err_msg=case.name)
        else:
            if not is_extension(dtype):  # numpy's comparison knows only the NaNs of its own dtypes
                np.testing.assert_array_equal(got, expected, case.name)
            assert got.tobytes() == expected.tobytes(), f"{case.name}: other zeros or NaNs"


def all_cases() -> list[Case]:
    return [case for op in OPERATORS for case in cases_of(op)]


def side_by_side(cases: Sequence[Case]) -> Graph:
    """Return one graph of all cases, their names put before those of tensors."""
    b = pl.GraphBuilder("all operators")
    for case in cases:
        specs, prefix = case.graph.tensors, f"{case.name}/"
        fed = {
            name: b.input(prefix + name, specs[name].dtype, specs[name].static_shape)
            for name in case.graph.inputs
        }
        for name, tensor in b.include(case.graph, fed, prefix).items():
            b.output(f"{case.name}.{name}", tensor)
    return b.build()


def inputs_of(cases: Sequence[Case]) -> dict[str, Array]:
    """Return what is fed to a graph of all cases."""
    return {f"{case.name}/{name}": x for case in cases for name, x in case.inputs.items()}


def results_of(case: Case, found: Results) -> Results:
    """Return the outputs of a case among those of a graph of all cases."""
    return {name: found[f"{case.name}.{name}"] for name in case.graph.outputs}


def test_every_operator_has_a_case() -> None:
    assert [op for op in OPERATORS if not cases_of(op)] == []


def test_cases_are_handwritten_only_where_onnx_has_none() -> None:
    assert [op for op in MISSING_FROM_ONNX if op in suite().nodes] == []


def test_cases_are_left_out_for_known_reasons_only() -> None:
    unknown = {name: why for name, why in suite().refused.items() if not re.match(UNLOADABLE, why)}
    assert unknown == {}


@pytest.mark.parametrize("op", OPERATORS)
def test_the_cpu_gives_what_onnx_says(reference: Reference, op: str) -> None:
    for case in cases_of(op):
        check_like_onnx(case, reference.results(case))


def test_operators_written_out_by_simpler_ones_give_what_onnx_says(reference: Reference) -> None:
    assert len(suite().functions) > 100
    for case in suite().functions:
        check_like_onnx(case, reference.results(case))


@pytest.mark.parametrize("op", OPERATORS)
def test_an_operator_gives_the_same_on_every_device(
    subject: Subject,
    device: Device,
    reference: Reference,
    ran: Callable[[Case], Results],
    op: str,
) -> None:
    cases = compared(subject, device, cases_of(op))
    if not cases:
        assert op in REFUSED[subject.kind], f"{subject.label} runs none of the cases"
        pytest.skip(f"{subject.label} refuses {op}: {REFUSED[subject.kind][op]}")
    for case in cases:
        check_like_the_cpu(case, subject.kind, ran(case), reference.results(case))


def test_operators_written_out_by_simpler_ones_give_the_same_on_every_device(
    subject: Subject, device: Device, reference: Reference
) -> None:
    cases = [case for case in suite().functions if not refusals(device, case.graph)]
    assert len(cases) > 100
    for case in cases[-ENOUGH.get(subject.kind, 0) :]:
        check_like_the_cpu(case, subject.kind, run(device, case), reference.results(case))


def test_a_device_refuses_what_it_is_known_to_refuse(subject: Subject, device: Device) -> None:
    assert all_refusals(device) == REFUSED[subject.kind]


def test_what_a_gpu_refuses_is_known_without_one() -> None:
    assert all_refusals(CudaDevice()) == REFUSED["cuda"]


def all_refusals(device: Device) -> dict[str, str]:
    found: dict[str, str] = {}
    for case in all_cases():
        if not any(is_extension(spec.dtype) for spec in case.graph.tensors.values()):
            found.update(refusals(device, case.graph))
    return found


@pytest.fixture
def closed_device(subject: Subject) -> Device:
    """Return a device for a session to open."""
    made = subject.make_for_session()
    with subject.skipped_if_missing():
        _ = made.capabilities
    return made


async def test_a_session_runs_all_operators_at_once(
    subject: Subject, closed_device: Device
) -> None:
    """In one graph: on the device what it supports, on the cpu the rest."""
    if subject.kind == "opencl":
        pytest.skip("PoCL takes a quarter of a minute to compile all operators once more")
    cases = [cases_of(op)[0] for op in OPERATORS]
    graph = side_by_side(cases)
    device = closed_device
    devices: list[str | Device] = [device] if subject.kind == "cpu" else [device, "cpu"]
    plan = pl.plan(graph, devices, strategy="preference")
    for node in plan.graph.nodes:
        supported = device.supports(node, plan.graph.call(node)).ok
        assert plan.assignment[node.name] == (device.name if supported else "cpu")
    async with pl.Session(plan) as session:
        results = await session.run(inputs_of(cases))
    for case in cases:
        check_like_onnx(case, results_of(case, results))
