"""Products of bytes by cuBLAS around zero points, against their definition, to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import plait as pl
import pytest
import trio
from cupy_double import CupyDouble
from fake_gpu import SEEDS
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.codegen.pieces import Launch
from plait.devices.codegen.registry import Kernel
from plait.devices.cuda import byte_products
from plait.devices.cuda.byte_products import (
    MOST_DEPTH,
    ByteProduct,
    PreparedConstants,
    match_byte_product,
)
from plait.devices.cuda.lowering import Lowering
from plait.devices.cuda.parts import Multiply
from plait.devices.formal.device import FormalDevice
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from pocl import pocl_device

from .rig import Rig
from .test_cuda_cublas import Library, answering
from .test_cuda_cudnn import folder, told

__all__ = ["folder"]  # a fixture

DTYPES = ("uint8", "int8")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have cuBLAS compute small ones."""
    pocl_device()
    monkeypatch.setattr(byte_products, "LEAST", 0)


class Case(NamedTuple):
    """A node, the values of its inputs, and which of them are constants."""

    op: str
    inputs: tuple[Array | None, ...]
    constant: frozenset[int]
    attributes: dict[str, Any] = {}  # noqa: RUF012 - never written to

    @property
    def graph(self) -> Graph:
        b = pl.GraphBuilder("product of bytes")
        names: list[str | None] = []
        for number, value in enumerate(self.inputs):
            if value is None:
                names.append(None)
            elif number in self.constant:
                names.append(b.constant(value))
            else:
                names.append(b.input(f"x{number}", value.dtype, value.shape))
        b.output("y", b.op(self.op, *names, **self.attributes))
        return b.build()

    @property
    def feeds(self) -> dict[str, Array]:
        return {
            f"x{number}": value
            for number, value in enumerate(self.inputs)
            if value is not None and number not in self.constant
        }


def drawn(shape: Sequence[int], dtype: str, seed: int) -> Array:
    """Return bytes, every third of them an extreme."""
    random, limits = np.random.default_rng(seed), np.iinfo(dtype)
    found = random.integers(limits.min, limits.max, tuple(shape), dtype, endpoint=True)
    ends = random.choice([limits.min, limits.max], tuple(shape)).astype(dtype)
    return np.where(random.integers(0, 3, tuple(shape)) == 0, ends, found)


def zeros_of(kind: str, shapes: dict[str, tuple[int, ...]], dtype: str, seed: int) -> Array | None:
    """Return zero points: none, one, or one for each row or column."""
    return None if kind == "none" else drawn(shapes[kind], dtype, seed)


KINDS = ("none", "one", "vector", "stack")


@st.composite
def matrix_cases(draw: st.DrawFn) -> Case:
    """Draw MatMulInteger: dtypes, stacks, lengths, zero points, and what is a constant."""
    m, n = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    k = draw(st.sampled_from((1, 3, 4, 7, 8, 17, 130)))
    lead = draw(st.sampled_from(((), (2,), (2, 3))))
    # One matrix for a whole stack, on either side, or two stacks.
    a_lead, b_lead = draw(st.sampled_from(((lead, ()), (lead, lead), ((), lead))))
    (a_dtype, b_dtype), seed = draw(st.tuples(*[st.sampled_from(DTYPES)] * 2)), draw(st.integers(0))
    a, b = drawn((*a_lead, m, k), a_dtype, seed), drawn((*b_lead, k, n), b_dtype, seed + 1)
    of_a = {"one": (), "vector": (m,), "stack": (*a_lead, m, 1)}
    of_b = {"one": (1,), "vector": (n,), "stack": (*b_lead, 1, n)}
    a_zero = zeros_of(draw(st.sampled_from(KINDS)), of_a, a_dtype, seed + 2)
    b_zero = zeros_of(draw(st.sampled_from(KINDS)), of_b, b_dtype, seed + 3)
    constant = draw(st.sampled_from(((), (1,), (1, 3), (0,), (0, 2), (2, 3))))
    return Case("MatMulInteger", (a, b, a_zero, b_zero), frozenset(constant))


def exactly(case: Case) -> Array:
    """Return what ONNX defines MatMulInteger to be, by way of integers of 64 bits."""
    a, b, a_zero, b_zero = (None if x is None else x.astype(np.int64) for x in case.inputs)
    assert a is not None
    assert b is not None
    if a_zero is not None:
        a = a - (a_zero[:, None] if a_zero.ndim == 1 else a_zero)
    if b_zero is not None:
        b = b - b_zero
    return (a @ b).astype(np.int32)


def computed(case: Case, device: Any) -> Array:
    with Rig(device, case.graph) as rig:
        return rig.run(case.feeds)["y"]


def found_in(graph: Graph) -> ByteProduct | None:
    (node,) = graph.nodes
    return match_byte_product(node, graph.call(node), graph.output_specs(node))


@pytest.mark.extended
@settings(max_examples=60)
@given(case=matrix_cases())
def test_products_are_those_of_the_definition(case: Case) -> None:
    double = CupyDouble()
    library = Library(double)
    np.testing.assert_array_equal(computed(case, double.generating(cublas=library)), exactly(case))
    assert library.cublas.forms == {"TN"}
    double.gpu.check_freed()


def linear(a_dtype: str, b_dtype: str, *, of_rows: bool) -> Case:
    random, (m, k, n) = np.random.default_rng(1), (6, 19, 7)
    scales = [random.uniform(0.01, 0.05, size).astype("f") for size in (m if of_rows else (), n)]
    zeros = drawn((m,) if of_rows else (), a_dtype, 3), drawn((n,), b_dtype, 4)
    left = drawn((2, m, k), a_dtype, 1), scales[0], zeros[0]
    right = drawn((k, n), b_dtype, 2), scales[1], zeros[1]
    made = np.float32(0.9).reshape(()), drawn((), a_dtype, 5)
    return Case("QLinearMatMul", (*left, *right, *made), frozenset({1, 3, 4, 5, 6, 7}))


def convolved(
    op: str, dtype: str, w_dtype: str, *, bias: bool = False, batch: int = 3, cells: int = 1
) -> Case:
    """Return a convolution by windows of as many cells."""
    random = np.random.default_rng(1)
    x, w = drawn((batch, 6, 5, 3), dtype, 1), drawn((7, 6, cells, 1), w_dtype, 2)
    zero, w_zero = drawn((), dtype, 3), drawn((7,), w_dtype, 4)
    if op == "ConvInteger":
        return Case(op, (x, w, zero, w_zero), frozenset({1, 3}))
    scales = np.float32(0.02).reshape(()), random.uniform(0.01, 0.05, 7).astype("f")
    given = (x, scales[0], zero, w, scales[1], w_zero, np.float32(0.5).reshape(()), zero)
    added = (random.integers(-999, 999, 7).astype("int32"),) if bias else ()
    return Case(op, (*given, *added), frozenset(range(1, 9)))


OTHERS = {
    f"{a} by {b}, {name}": case
    for a in DTYPES
    for b in DTYPES
    for name, case in {
        "QLinearMatMul": linear(a, b, of_rows=False),
        "QLinearMatMul by rows": linear(a, b, of_rows=True),
        "ConvInteger": convolved("ConvInteger", a, b),
        "QLinearConv": convolved("QLinearConv", a, b),
        "QLinearConv of windows": convolved("QLinearConv", a, b, cells=3),
        "QLinearConv with a bias": convolved("QLinearConv", a, b, bias=True, batch=1),
    }.items()
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_quantized_again_has_the_bits_of_generated_kernels(
    double: CupyDouble, name: str
) -> None:
    """Those of the cpu may be one off: scales are multiplied in another order."""
    case, library = OTHERS[name], Library(double)
    found = computed(case, double.generating(cublas=library))
    np.testing.assert_array_equal(found, computed(case, double.generating(cublas=None)))
    assert library.cublas.forms == {"TN"}
    expected = computed(case, pl.devices.find("cpu"))
    assert np.abs(found.astype(int) - expected).max() <= case.op.startswith("QLinear")
    assert len(np.unique(found)) > 3


def slid(
    dtype: str,
    spatial: tuple[int, ...],
    kernel: tuple[int, ...],
    *,
    zero: bool = True,
    w_zero: int = 0,
    channels: int = 6,
    **attributes: Any,
) -> Case:
    """Return a convolution of 6 channels to 9 by weights of int8."""
    x, w = drawn((2, 6, *spatial), dtype, 1), drawn((9, channels, *kernel), "int8", 2)
    point = drawn((), dtype, 3) if zero else None
    inputs = x, w, point, np.int8(w_zero).reshape(())
    return Case("ConvInteger", inputs, frozenset({1, 3}), attributes)


WINDOWS = {
    "plain": slid("uint8", (6, 5), (3, 2)),
    "around other weights": slid("uint8", (6, 5), (3, 3), w_zero=-7, pads=[1, 1, 1, 1]),
    "lines around other weights": slid("int8", (170,), (5,), w_zero=9, strides=[3]),
    "padded": slid("uint8", (6, 5), (3, 3), pads=[1, 1, 1, 1]),
    "padded with a sign": slid("int8", (6, 5), (3, 3), pads=[1, 0, 2, 1]),
    "padded around nothing": slid("uint8", (6, 5), (3, 3), zero=False, auto_pad="SAME_LOWER"),
    "apart": slid("uint8", (9, 8), (3, 2), strides=[2, 3], dilations=[2, 1], pads=[2, 1, 1, 0]),
    "single cells apart": slid("int8", (9, 8), (1, 1), strides=[2, 2]),
    "lines": slid("uint8", (17,), (5,), pads=[2, 2]),
    "solids": slid("int8", (3, 4, 5), (2, 2, 3), pads=[1, 0, 1, 0, 1, 1]),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_of_images_are_those_of_the_definition(double: CupyDouble, name: str) -> None:
    case, library = WINDOWS[name], Library(double)
    found = computed(case, double.generating(cublas=library))
    np.testing.assert_array_equal(found, computed(case, FormalDevice()))
    assert library.cublas.forms == {"TN"}


def matrices(
    a: tuple[int, ...], b: tuple[int, ...], *zeros: tuple[int, ...], constant: Sequence[int] = ()
) -> Case:
    """Return a product of bytes without a sign, around zero points of some shapes."""
    factors = drawn(a, "uint8", 1), drawn(b, "uint8", 2)
    points = (drawn(shape, "uint8", number) for number, shape in enumerate(zeros))
    return Case("MatMulInteger", (*factors, *points), frozenset(constant))


PRODUCTS = {
    "a layer": matrices((40, 64), (64, 24), (), (24,), constant=(1, 3)),
    "a layer of odd sizes": matrices((5, 7, 67), (67, 9), (), (), constant=(1, 3)),
    "what is computed": matrices((6, 130), (130, 9), (6,), (9,)),
    "stacks": matrices((2, 3, 40, 18), (2, 3, 18, 33), (2, 3, 40, 1), (2, 3, 1, 33)),
    "a long row": matrices((2, 100_000), (100_000, 4), (), ()),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_all_shapes_are_those_of_the_definition(double: CupyDouble, name: str) -> None:
    case, library = PRODUCTS[name], Library(double)
    np.testing.assert_array_equal(computed(case, double.generating(cublas=library)), exactly(case))
    assert library.cublas.forms == {"TN"}


@pytest.mark.parametrize("dtypes", list(product(DTYPES, DTYPES)), ids=" by ".join)
def test_onnx_runtime_has_the_same_sums(double: CupyDouble, dtypes: tuple[str, str]) -> None:
    pytest.importorskip("onnxruntime")
    a, b = dtypes
    factors = drawn((2, 6, 37), a, 1), drawn((37, 9), b, 2)
    case = Case("MatMulInteger", (*factors, drawn((), a, 3), drawn((9,), b, 4)), frozenset({1, 3}))
    expected = pl.run(case.graph, case.feeds, devices=["ort"])["y"]
    np.testing.assert_array_equal(computed(case, double.generating()), expected)


def kernels() -> list[Kernel]:
    """Return those of all cases."""
    lowering, found = Lowering(generates=True, multiplies=True), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(byte_products, "LEAST", 0)
        cases = *PRODUCTS.values(), *WINDOWS.values(), *OTHERS.values()
        for graph in (dense(), *(case.graph for case in cases)):
            queued = [item for part in lowering.parts(graph, {}) for item in part.queued or ()]
            assert any(isinstance(item, Multiply) for item in queued)
            found += [item.kernel for item in queued if isinstance(item, Launch)]
    return found


def dense(*, batch: int = 40, depth: int = 64) -> Graph:
    """Return what dynamic quantization makes of a dense layer with a Relu."""
    b, random = pl.GraphBuilder("dense"), np.random.default_rng(2)
    x = b.input("x", "float32", (batch, depth))
    bytes_, scale, zero = b.op("DynamicQuantizeLinear", x, outputs=["bytes", "scale", "zero"])
    w = random.integers(-127, 128, (depth, 24)).astype("int8")
    sums = b.op("MatMulInteger", bytes_, w, zero, np.int8(0), name="product")
    scaled = b.op("Mul", b.op("Cast", sums, to="float32"), b.op("Mul", scale, np.float32(0.01)))
    b.output("y", b.op("Relu", b.op("Add", scaled, random.standard_normal(24).astype("f"))))
    return b.build()


def parts_of(graph: Graph, device: Any) -> list[Any]:
    with Rig(device, graph) as rig:
        return [item for part in device._lowering.parts(graph, rig.views) for item in part.queued]


def test_zero_points_are_taken_off_by_the_kernel_that_goes_on(double: CupyDouble) -> None:
    """Bytes are packed, multiplied, and all the rest is one kernel."""
    queued = parts_of(dense(), double.generating())
    (at,) = (number for number, item in enumerate(queued) if isinstance(item, Multiply))
    titles = [item.kernel.title if isinstance(item, Launch) else "" for item in queued]
    assert titles[at - 1] == "pack"
    (last,) = titles[at + 1 :]
    assert last.startswith("finish_product_")
    assert last.endswith("relu")
    x = np.random.default_rng(3).standard_normal((40, 64)).astype("f")
    with Rig(double.generating(), dense()) as rig, Rig(pl.devices.find("cpu"), dense()) as cpu:
        np.testing.assert_array_equal(rig.run({"x": x})["y"], cpu.run({"x": x})["y"])


def test_constants_are_packed_and_added_up_once(double: CupyDouble) -> None:
    """A second program has those of the first one, and the originals are not on the GPU."""
    graph, device = dense(), double.generating()
    (w,) = (name for name, one in graph.constants.items() if one.ndim == 2)
    first = device._lowering.constants(graph)
    again = device._lowering.constants(graph)
    assert w not in first
    made = {name.removeprefix(w): one for name, one in first.items() if name.startswith(w)}
    assert {name: (one.dtype, one.shape) for name, one in made.items()} == {
        "\0b": (np.int8, (1, 24, 64)),
        "\0sums_b": (np.int32, (24,)),
    }
    assert all(one is first[name] for name, one in again.items())
    np.testing.assert_array_equal(made["\0b"][0], graph.constants[w].T)


def test_what_is_made_of_a_constant_is_not_taken_for_that_of_another() -> None:
    """An array that is gone leaves its identity to others, while a GPU may have what it became."""
    found = found_in(matrices((2, 8), (8, 4), (), (), constant=(1,)).graph)
    assert found is not None
    prepared, kept, seen = PreparedConstants(), [], []
    for number in range(50):
        constant = np.full((8, 4), number, "uint8")
        seen.append(id(constant))
        kept.append(prepared.of("w", constant, found.b))
        np.testing.assert_array_equal(kept[-1]["w\0sums_b"], 8 * (number - 128))
        del constant
    assert len(set(seen)) < len(seen)


def test_a_constant_that_others_read_stays_as_it_is(double: CupyDouble) -> None:
    b = pl.GraphBuilder("shared")
    x, w = b.input("x", "uint8", (4, 8)), b.constant(drawn((8, 4), "int8", 1))
    b.output("y", b.op("MatMulInteger", x, w))
    b.output("z", b.op("Cast", w, to="float32"))
    graph = b.build()
    assert w in double.generating()._lowering.constants(graph)
    (w_value,), fed = graph.constants.values(), drawn((4, 8), "uint8", 2)
    with Rig(double.generating(), graph) as rig:
        found = rig.run({"x": fed})
    np.testing.assert_array_equal(found["y"], fed.astype(int) @ w_value)
    np.testing.assert_array_equal(found["z"], w_value)


def test_one_constant_may_be_both_factors(double: CupyDouble) -> None:
    b = pl.GraphBuilder("square")
    w = b.constant(drawn((6, 6), "uint8", 1))
    b.output("y", b.op("MatMulInteger", w, w))
    (value,) = b.build().constants.values()
    with Rig(double.generating(), b.build()) as rig:
        np.testing.assert_array_equal(rig.run({})["y"], value.astype(int) @ value)


@pytest.mark.parametrize("name", ["uint8 by int8, QLinearConv", "int8 by uint8, ConvInteger"])
def test_what_cublas_refuses_is_generated(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    answering(15, monkeypatch)
    case, device = OTHERS[name], double.generating()
    before = pl.plan(case.graph, [device]).memory
    found = pl.run(case.graph, case.feeds, devices=[device])["y"]
    np.testing.assert_array_equal(found, computed(case, double.generating(cublas=None)))
    after = pl.plan(case.graph, [device]).memory
    assert before is not None
    assert after is not None
    assert before.scratch == after.scratch


def plain(a: tuple[int, ...], b: tuple[int, ...]) -> Graph:
    """Return a product of bytes with a sign, by a constant."""
    return Case("MatMulInteger", (drawn(a, "int8", 1), drawn(b, "int8", 2)), frozenset({1})).graph


def test_what_is_small_or_not_exact_is_left_to_generated_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert MOST_DEPTH * 128 * 128 < 1 << 31 <= (MOST_DEPTH + 1) * 128 * 128
    assert found_in(plain((2, MOST_DEPTH), (MOST_DEPTH, 4))) is not None
    assert found_in(plain((2, MOST_DEPTH + 1), (MOST_DEPTH + 1, 4))) is None
    assert found_in(plain((2, 1, 3, 4), (1, 2, 4, 4))) is None  # broadcast both ways
    case = OTHERS["uint8 by int8, QLinearConv"]
    assert found_in(case.graph) is not None
    monkeypatch.setattr(byte_products, "LEAST", 1 << 40)
    assert found_in(case.graph) is None
    assert found_in(plain((3, 16), (16, 4))) is not None  # nothing but a product


def test_windows_are_left_to_generated_kernels_if_it_takes_too_much_to_write_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = WINDOWS["padded"]
    monkeypatch.setattr(byte_products, "MOST_NBYTES", 2 * 32 * 64)  # two images' 30 windows of 54
    assert found_in(case.graph) is not None
    monkeypatch.setattr(byte_products, "MOST_NBYTES", 2 * 32 * 64 - 1)
    assert found_in(case.graph) is None
    assert found_in(slid("uint8", (6, 5), (3, 3), channels=2, group=3).graph) is None


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("products", "calls"), [(1.0, 1), (3.0, 0)])
def test_the_fastest_computes(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch, products: float, calls: int
) -> None:
    case, library = OTHERS["uint8 by int8, QLinearConv"], Library(double)
    asked = told(monkeypatch, {"cublas": products, "generated": 2.0})
    with Rig(double.generating(cublas=library), case.graph) as rig:
        assert sorted(asked) == ["cublas", "generated"]
        before = library.cublas.calls
        rig.device.compile(rig.graph, rig.views)
        assert len(asked) == 2, "measured again"
        assert library.cublas.calls - before == calls  # as it is recorded
        found = rig.run(case.feeds)["y"]
    np.testing.assert_array_equal(found, computed(case, double.generating(cublas=None)))


@pytest.mark.usefixtures("folder")
def test_what_is_measured_is_right(double: CupyDouble) -> None:
    case = OTHERS["uint8 by uint8, QLinearMatMul by rows"]
    found = computed(case, double.generating())
    np.testing.assert_array_equal(found, computed(case, double.generating(cublas=None)))


async def items(plan: pl.Plan, feeds: list[dict[str, Array]]) -> list[Array]:
    async with pl.Session(plan) as session:
        async with session.stream(feeds) as results:
            return [item["y"] async for item in results]


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_items_in_flight_do_not_meet(seed: int) -> None:
    graph, random = dense(), np.random.default_rng(4)
    feeds = [{"x": random.standard_normal((40, 64)).astype("f")} for _ in range(4)]
    plan = pl.plan(graph, [CupyDouble(seed).generating()], max_in_flight=2)
    found = trio.run(items, plan, feeds)
    with Rig(pl.devices.find("cpu"), graph) as cpu:
        for one, fed in zip(found, feeds, strict=True):
            np.testing.assert_array_equal(one, cpu.run(fed)["y"])


def test_devices_say_which_library_multiplies(double: CupyDouble) -> None:
    graph = OTHERS["uint8 by int8, QLinearConv"].graph
    (node,) = graph.nodes
    said = double.generating().supports(node, graph.call(node))
    assert said.reason == "cuBLAS computes it, unless something else is faster"
