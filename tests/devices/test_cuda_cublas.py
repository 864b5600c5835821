"""Products through cuBLAS, against numpy; the library checks what it is given."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import closing

import numpy as np
import plait as pl
import pytest
from cupy_double import CupyDouble
from fake_cublas import FakeCublas
from patience import WAIT_S
from plait.devices.cuda.cublas import find_cublas
from plait.devices.cuda.products import Product, match_product
from plait.devices.errors import KernelError
from plait.graph.core.ir import Graph
from plait.graph.values.dtypes import dtype_of
from plait.graph.values.tensor import Array

from .rig import Rig

Make = Callable[[pl.GraphBuilder, str], str]
RNG = np.random.default_rng(11)


def numbers(*shape: int, dtype: str = "float32") -> Array:
    return RNG.integers(-4, 5, shape).astype(dtype)


def half(*shape: int) -> Array:
    return numbers(*shape, dtype="float16")


def brief(*shape: int) -> Array:
    return numbers(*shape).astype(dtype_of("bfloat16"))


def gemm_plus(shape: tuple[int, ...]) -> Make:
    return lambda b, x: b.op("Gemm", x, numbers(6, 5), numbers(*shape))


X, STACK, IMAGE = numbers(4, 6), numbers(2, 3, 4, 6), numbers(2, 3, 4, 5)
PRODUCTS: dict[str, tuple[Array, Make]] = {
    "matrices": (X, lambda b, x: b.op("MatMul", x, numbers(6, 5))),
    "doubles": (X.astype("d"), lambda b, x: b.op("MatMul", x, numbers(6, 5, dtype="float64"))),
    "halves": (half(4, 6), lambda b, x: b.op("MatMul", x, half(6, 5))),
    "bfloat16": (
        brief(4, 6), lambda b, x: b.op("MatMul", x, brief(6, 5))
    ),
    "a stack of bfloat16": (
        brief(2, 4, 6), lambda b, x: b.op("MatMul", x, brief(2, 6, 5))
    ),
    "Conv of bfloat16": (
        brief(2, 3, 4, 5), lambda b, x: b.op("Conv", x, brief(7, 3, 1, 1), brief(7))
    ),
    "a row": (numbers(6), lambda b, x: b.op("MatMul", x, numbers(6, 5))),
    "a column": (X, lambda b, x: b.op("MatMul", x, numbers(6))),
    "vectors": (numbers(6), lambda b, x: b.op("MatMul", x, numbers(6))),
    "a stack and a matrix": (STACK, lambda b, x: b.op("MatMul", x, numbers(6, 5))),
    "stacks": (STACK, lambda b, x: b.op("MatMul", x, numbers(2, 3, 6, 5))),
    "a matrix and a stack": (X, lambda b, x: b.op("MatMul", x, numbers(3, 6, 5))),
    "Gemm": (X, lambda b, x: b.op("Gemm", x, numbers(6, 5))),
    "Gemm, all of it": (
        X,
        lambda b, x: b.op("Gemm", x, numbers(7, 4), numbers(6, 7), alpha=2.0, beta=-1.0,
                          transA=True, transB=True),
    ),
    "Gemm plus nothing": (
        X, lambda b, x: b.op("Gemm", x, numbers(6, 5), np.full(5, np.nan, "f"), beta=0.0)
    ),
    "Gemm of halves": (half(4, 6), lambda b, x: b.op("Gemm", x, half(6, 5), half(5))),
    "Conv": (IMAGE, lambda b, x: b.op("Conv", x, numbers(7, 3, 1, 1))),
    "Conv of halves": (half(2, 3, 4, 5), lambda b, x: b.op("Conv", x, half(7, 3, 1, 1), half(7))),
    "Conv of lines": (numbers(1, 3, 9), lambda b, x: b.op("Conv", x, numbers(2, 3, 1), numbers(2))),
}  # fmt: skip
for shape in ((5,), (4, 1), (1,), (1, 5), ()):
    PRODUCTS[f"Gemm plus {shape}"] = (X, gemm_plus(shape))

OTHERS: dict[str, tuple[Array, Make]] = {
    "stacks that broadcast both ways": (
        STACK[:, :1],
        lambda b, x: b.op("MatMul", x, numbers(1, 3, 6, 5)),
    ),
    "integers": (
        X.astype("int32"),
        lambda b, x: b.op("MatMul", x, numbers(6, 5, dtype="int32")),
    ),
    "bytes to bytes": (
        numbers(4, 8, dtype="int8"),
        lambda b, x: b.op("MatMul", x, numbers(8, 4, dtype="int8")),
    ),
    "no terms": (numbers(4, 0), lambda b, x: b.op("MatMul", x, numbers(0, 5))),
    "padded": (IMAGE, lambda b, x: b.op("Conv", x, numbers(2, 3, 1, 1), pads=[1, 0, 0, 0])),
    "strided": (IMAGE, lambda b, x: b.op("Conv", x, numbers(2, 3, 1, 1), strides=[2, 1])),
    "grouped": (IMAGE, lambda b, x: b.op("Conv", x, numbers(3, 1, 1, 1), group=3)),
    "windows": (IMAGE, lambda b, x: b.op("Conv", x, numbers(2, 3, 3, 3))),
}


def graph_of(x: Array, make: Make) -> Graph:
    b = pl.GraphBuilder()
    b.output("y", make(b, b.input("x", x.dtype, x.shape)))
    return b.build()


def product(graph: Graph) -> Product | None:
    (node,) = graph.nodes
    return match_product(node, graph.call(node), graph.output_specs(node))


class Library:
    """The fake library of a double, made once."""

    def __init__(self, double: CupyDouble) -> None:
        self.cublas = FakeCublas(double.gpu)

    def __call__(self) -> FakeCublas:
        return self.cublas


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_is_right(double: CupyDouble, name: str) -> None:
    x, make = PRODUCTS[name]
    graph, library = graph_of(x, make), Library(double)
    with Rig(pl.devices.find("cpu"), graph) as rig:
        expected = rig.run({"x": x})["y"]
    with Rig(double.generating(cublas=library), graph) as rig:
        np.testing.assert_array_equal(rig.run({"x": x})["y"], expected)
    assert library.cublas.calls > 0
    gc.collect()
    assert (library.cublas.open, library.cublas.described) == (0, 0)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_product_of_cublas_is_left_alone(name: str) -> None:
    assert product(graph_of(*OTHERS[name])) is None


def test_the_workspace_grows_with_the_product() -> None:
    sizes = []
    for n in (16, 256, 512):
        b = pl.GraphBuilder()
        x = b.input("x", "float32", (n, n))
        b.output("y", b.op("MatMul", x, x))
        found = product(b.build())
        assert found is not None
        sizes.append(found.workspace_nbytes)
    assert sizes == [64 << 10, 4 << 20, 32 << 20]


def test_the_workspace_is_planned_as_a_scratch_buffer(double: CupyDouble) -> None:
    graph = graph_of(*PRODUCTS["Gemm"])
    (node,), device = graph.nodes, double.generating()
    (scratch,) = device.scratch(node, graph.call(node), graph.output_specs(node))
    assert scratch.nbytes == 64 << 10


@pytest.mark.parametrize("tf32", [False, True])
def test_float32_is_rounded_only_when_that_is_asked_for(double: CupyDouble, tf32: bool) -> None:
    library = Library(double)
    with Rig(double.generating(cublas=library, tf32=tf32), graph_of(*PRODUCTS["matrices"])):
        pass
    assert library.cublas.computed == {77 if tf32 else 68}


def test_double_precision_is_never_rounded(double: CupyDouble) -> None:
    library = Library(double)
    with Rig(double.generating(cublas=library, tf32=True), graph_of(*PRODUCTS["doubles"])):
        pass
    assert library.cublas.computed == {70}


def answering(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have cuBLAS answer all products with a status."""
    monkeypatch.setattr(FakeCublas, "cublasLtMatmul", lambda self, *given: status)


@pytest.mark.parametrize("name", ["matrices", "stacks", "Gemm, all of it"])
def test_products_that_cublas_refuses_are_generated(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    answering(15, monkeypatch)
    x, make = PRODUCTS[name]
    graph = graph_of(x, make)
    with Rig(pl.devices.find("cpu"), graph) as rig:
        expected = rig.run({"x": x})["y"]
    with Rig(double.generating(), graph) as rig:
        np.testing.assert_array_equal(rig.run({"x": x})["y"], expected)
        again = rig.device.compile(rig.graph, rig.views)  # nothing is asked of cuBLAS again
        rig.device.submit(again).wait(WAIT_S)


@pytest.mark.parametrize("status", [0, 15])
def test_products_that_cublas_has_no_algorithm_for_are_generated(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(FakeCublas, "cublasLtMatmulAlgoGetHeuristic", lambda self, *given: status)
    x, make = PRODUCTS["matrices"]
    graph, library = graph_of(x, make), Library(double)
    with Rig(double.generating(cublas=library), graph) as rig:
        found = rig.run({"x": x})["y"]
    np.testing.assert_array_equal(found, x @ next(iter(graph.constants.values())))
    assert library.cublas.calls == 0


def test_what_follows_a_product_that_cublas_refuses_becomes_its_epilogue(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(15, monkeypatch)
    x, make = PRODUCTS["matrices"]
    graph = graph_of(x, lambda b, name: b.op("Relu", make(b, name)))
    with Rig(double.generating(graphs=False), graph) as rig:
        before = double.cuda.driver.launches
        rig.run({"x": x})
        assert double.cuda.driver.launches == before + 1


def test_a_plan_made_before_a_refusal_has_room_for_what_takes_the_products_place(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(15, monkeypatch)
    b = pl.GraphBuilder()
    x, w = b.input("x", "float32", (4, 100_000)), b.input("w", "float32", (100_000, 4))
    b.output("y", b.op("MatMul", x, w))  # so deep that it is summed in parts
    graph, ones = b.build(), np.ones((4, 100_000), np.float32)
    device = double.generating()
    before = pl.plan(graph, [device])
    found = pl.run(graph, {"x": ones, "w": ones.T.copy()}, devices=[device])
    np.testing.assert_array_equal(found["y"], np.full((4, 4), 100_000))
    assert before.memory is not None
    after = pl.plan(graph, [device])
    assert after.memory is not None
    assert before.memory.scratch == after.memory.scratch


def test_a_product_that_breaks_cublas_names_its_node(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(13, monkeypatch)
    with closing(double.generating()) as device:
        with pytest.raises(KernelError, match="fails: CUBLAS_STATUS_EXECUTION_FAILED") as raised:
            Rig(device, graph_of(*PRODUCTS["matrices"]))
    assert "matmul" in str(raised.value.at).lower()


def test_kernels_of_ours_are_not_compiled_to_warm_up_cublas(double: CupyDouble) -> None:
    sources: list[str] = []

    def compiler(source: str, arch: str) -> bytes:
        sources.append(source)
        return source.encode()

    with Rig(double.generating(compiler=compiler), graph_of(*PRODUCTS["Gemm plus (4, 1)"])):
        assert len(sources) == 1


def test_without_cublas_products_are_generated(double: CupyDouble) -> None:
    x, make = PRODUCTS["matrices"]
    graph = graph_of(x, make)
    with Rig(double.generating(cublas=lambda: None), graph) as rig:
        found = rig.run({"x": x})["y"]
        rig.compute().wait(WAIT_S)
    np.testing.assert_array_equal(found, x @ next(iter(graph.constants.values())))


def test_the_library_installed_has_the_functions() -> None:
    """Needs cuBLAS, but no GPU."""
    library = find_cublas()
    if library is None:
        pytest.skip("cuBLAS is not installed: pip install nvidia-cublas")
    called = [name for name in vars(FakeCublas) if name.startswith("cublas")]
    assert [name for name in called if not hasattr(library, name)] == []
