"""Biases, and what follows them: by cuBLAS itself, or in one kernel behind its product."""

from __future__ import annotations

import fake_cublas
import numpy as np
import plait as pl
import pytest
import trio
from cupy_double import CupyDouble
from fake_gpu import SEEDS
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.codegen.pieces import Launch
from plait.devices.cuda.lowering import Lowering
from plait.devices.device import scratch_name
from plait.devices.memory import host_arena, host_view
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array

from .rig import Rig
from .test_cuda_cublas import IMAGE, Library, Make, answering, graph_of, numbers


def bottleneck(b: pl.GraphBuilder, x: str) -> str:
    """Return two layers of single cells, the first one's input added to the second one's output."""
    h = b.op("Relu", b.op("Conv", x, numbers(5, 3, 1, 1), numbers(5)))
    y = b.op("Conv", h, numbers(3, 5, 1, 1), numbers(3))
    end: str = b.op("Relu", b.op("Add", y, x))
    return end


def projected(b: pl.GraphBuilder, x: str) -> str:
    """Return the sum of two layers of single cells that read the same."""
    one, two = (b.op("Conv", x, numbers(4, 3, 1, 1), numbers(4)) for _ in range(2))
    end: str = b.op("Relu", b.op("Add", one, two))
    return end


def read_twice(b: pl.GraphBuilder, x: str) -> str:
    """Return a layer whose input is made by what its output would be computed with."""
    doubled = b.op("Add", x, x)
    y = b.op("Conv", doubled, numbers(3, 3, 1, 1), numbers(3))
    end: str = b.op("Sub", b.op("Neg", y), doubled)
    return end


@pytest.mark.parametrize(
    ("make", "kernels", "calls"), [(bottleneck, 2, 2), (projected, 1, 2), (read_twice, 2, 1)]
)
@pytest.mark.parametrize("seed", SEEDS[:3])
def test_biases_are_added_by_the_kernel_behind_a_product(
    make: Make, kernels: int, calls: int, seed: int
) -> None:
    double = CupyDouble(seed)
    library, graph = Library(double), graph_of(IMAGE, make)
    plan = pl.plan(graph, [double.generating(cublas=library, graphs=False)], max_in_flight=2)
    feeds = [{"x": IMAGE + number} for number in range(4)]
    wanted = [pl.run(graph, fed, devices=["cpu"])["y"] for fed in feeds]

    async def run() -> tuple[int, int]:
        async with pl.Session(plan) as session:
            before = double.cuda.driver.launches, library.cublas.calls
            async with session.stream(feeds) as results:
                async for item in results:
                    np.testing.assert_array_equal(item["y"], wanted[item.index])
            return double.cuda.driver.launches - before[0], library.cublas.calls - before[1]

    assert trio.run(run) == (kernels * len(feeds), calls * len(feeds))


@pytest.mark.parametrize("shared", [False, True])
def test_what_a_product_left_is_gone_on_with_unless_it_is_written_over_before(shared: bool) -> None:
    b = pl.GraphBuilder()
    x = b.input("x", "float32", (2, 3, 4, 5))
    product = b.op("Conv", x, numbers(3, 3, 1, 1), numbers(3))
    wide = b.op("Cast", product, to="float64")  # from here on nobody reads the product's bytes
    sums = b.op("CumSum", x, np.int64(2))
    b.output("y", b.op("Add", wide, b.op("Cast", sums, to="float64")))
    graph = b.build()
    arena = host_arena(1 << 14)
    names = [name for name in graph.tensors if name not in graph.constants]
    places = {name: 1024 * place for place, name in enumerate(names)}
    places |= {sums: places[product]} if shared else {}
    views = {name: host_view(arena, at, graph.tensors[name]) for name, at in places.items()}
    parts = Lowering(generates=True, multiplies=True).parts(graph, views)
    queued = [item for part in parts for item in part.queued or ()]
    launched = [item.buffers for item in queued if isinstance(item, Launch)]
    (reader,) = (place for place, buffers in enumerate(launched) if product in buffers)
    (writer,) = (place for place, buffers in enumerate(launched) if buffers[-1] == sums)
    assert (reader < writer) == shared


@st.composite
def networks(draw: st.DrawFn) -> Graph:
    """Draw layers of single cells among elementwise nodes, reductions and sums of any two."""
    b, rng = pl.GraphBuilder(), np.random.default_rng(draw(st.integers(0, 99)))
    tensors = [b.input("x", "float32", (1, 3, 2, 2))]
    for _ in range(draw(st.integers(2, 9))):
        # Far ones too: what lies between is still to be read, or written over.
        one, two = (draw(st.sampled_from(tensors[-4:])) for _ in range(2))
        op = draw(st.sampled_from(["Conv", "Conv", "Relu", "Neg", "Add", "Sub", "CumSum"]))
        if op == "Conv":
            weights = rng.integers(-1, 2, (3, 3, 1, 1)).astype(np.float32)
            tensors.append(b.op(op, one, weights, numbers(3)))
        elif op == "CumSum":
            tensors.append(b.op(op, one, np.int64(2)))
        else:
            tensors.append(b.op(op, one, two) if op in ("Add", "Sub") else b.op(op, one))
    b.output("y", tensors[-1])
    b.output("z", draw(st.sampled_from(tensors[1:])))
    return b.build()


@settings(max_examples=40, deadline=None)
@given(networks(), st.sampled_from(SEEDS), st.booleans())
def test_layers_are_right_where_tensors_share_memory(graph: Graph, seed: int, plans: bool) -> None:
    x = np.arange(12, dtype=np.float32).reshape(1, 3, 2, 2) - 5
    found = pl.run(graph, {"x": x}, devices=[CupyDouble(seed).generating(graphs=plans)])
    wanted = pl.run(graph, {"x": x}, devices=["cpu"])
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name])


def test_a_product_that_was_begun_without_its_bias_and_is_refused_has_it_generated(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(15, monkeypatch)
    graph = graph_of(IMAGE, bottleneck)
    wanted = pl.run(graph, {"x": IMAGE}, devices=["cpu"])["y"]
    found = pl.run(graph, {"x": IMAGE}, devices=[double.generating()])["y"]
    np.testing.assert_array_equal(found, wanted)


def dense(b: pl.GraphBuilder, x: str, row: Array | None = None) -> str:
    made: str = b.op("Add", b.op("MatMul", x, numbers(6, 5)), numbers(5) if row is None else row)
    return made


def read_on_the_way(b: pl.GraphBuilder, x: str) -> str:
    made = dense(b, x)
    end: str = b.op("Sub", made, b.op("Relu", made))
    return end


LAYERS: dict[str, tuple[Make, int, set[int]]] = {
    "MatMul and a row": (dense, 0, {4}),
    "a row and MatMul": (
        lambda b, x: b.op("Add", numbers(1, 5), b.op("MatMul", x, numbers(6, 5))), 0, {4}
    ),
    "MatMul, a row and Relu": (lambda b, x: b.op("Relu", dense(b, x)), 0, {6}),
    "Gemm": (lambda b, x: b.op("Gemm", x, numbers(6, 5), numbers(5), alpha=2.0), 0, {4}),
    "Gemm and Relu": (
        lambda b, x: b.op("Relu", b.op("Gemm", x, numbers(6, 5), numbers(1, 5))), 0, {6}
    ),
    "a column": (lambda b, x: dense(b, x, numbers(4, 1)), 1, {1}),
    "another operator": (lambda b, x: b.op("Sqrt", b.op("Abs", dense(b, x))), 1, {1}),
    "Relu alone": (lambda b, x: b.op("Relu", b.op("MatMul", x, numbers(6, 5))), 1, {1}),
    "half a bias": (lambda b, x: b.op("Gemm", x, numbers(6, 5), numbers(5), beta=0.5), 1, {1}),
    "what was added is read by others": (read_on_the_way, 1, {1}),
    "doubles": (
        lambda b, x: b.op(
            "Add",
            b.op("MatMul", b.op("Cast", x, to="float64"), numbers(6, 5, dtype="float64")),
            numbers(5, dtype="float64"),
        ),
        2,
        {1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_rows_are_added_and_cut_off_by_cublas_itself(double: CupyDouble, name: str) -> None:
    make, kernels, epilogues = LAYERS[name]
    library, x = Library(double), numbers(4, 6)
    graph = graph_of(x, make)
    with Rig(double.generating(cublas=library, graphs=False), graph) as rig:
        before = double.cuda.driver.launches
        found = rig.run({"x": x})["y"]
        assert double.cuda.driver.launches - before == kernels
    np.testing.assert_array_equal(found, pl.run(graph, {"x": x}, devices=["cpu"])["y"])
    assert library.cublas.epilogues == epilogues


def test_a_row_is_added_once_where_other_nodes_come_before_what_reads_it(
    double: CupyDouble,
) -> None:
    b, x = pl.GraphBuilder(), numbers(4, 4)
    name = b.input("x", "float32", x.shape)
    one, two = (b.op("Gemm", name, numbers(4, 4), numbers(4)) for _ in range(2))
    b.output("y", b.op("Add", one, two))
    graph = b.build()
    found = pl.run(graph, {"x": x}, devices=[double.generating()])["y"]
    np.testing.assert_array_equal(found, pl.run(graph, {"x": x}, devices=["cpu"])["y"])


def test_a_fetched_product_is_left_as_it_is(double: CupyDouble) -> None:
    b, x = pl.GraphBuilder(), numbers(4, 6)
    product = b.op("MatMul", b.input("x", "float32", x.shape), numbers(6, 5))
    b.output("y", b.op("Add", product, numbers(5)))
    b.output("z", product)
    graph = b.build()
    found = pl.run(graph, {"x": x}, devices=[double.generating()])
    wanted = pl.run(graph, {"x": x}, devices=["cpu"])
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name])


@pytest.mark.parametrize("at", ["x", "scratch", "apart"])
def test_results_are_not_written_over_what_the_product_reads(at: str) -> None:
    graph = graph_of(numbers(4, 6), dense)
    device = Lowering(generates=True, multiplies=True)
    (product, _) = graph.nodes
    names = [name for name in graph.tensors if name not in graph.constants]
    specs = {name: graph.tensors[name] for name in names}
    outputs = graph.output_specs(product)
    (specs["scratch"],) = device.scratch(product, graph.call(product), outputs)
    places = {name: place * 1024 for place, name in enumerate(specs)}
    places |= {"y": places.get(at, 1 << 20)}
    arena = host_arena(1 << 21)
    views = {name: host_view(arena, place, specs[name]) for name, place in places.items()}
    views[scratch_name(product, 0)] = views.pop("scratch")
    parts = device.parts(graph, views)
    assert len(parts) == (1 if at == "apart" else 2)


def test_a_row_that_cublas_refuses_is_added_by_a_kernel(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_cublas, "BIASED", ())
    library, x = Library(double), numbers(4, 6)
    graph = graph_of(x, lambda b, name: b.op("Relu", dense(b, name)))
    found = pl.run(graph, {"x": x}, devices=[double.generating(cublas=library)])["y"]
    np.testing.assert_array_equal(found, pl.run(graph, {"x": x}, devices=["cpu"])["y"])
    assert library.cublas.epilogues == {1}


@st.composite
def perceptrons(draw: st.DrawFn) -> Graph:
    """Draw products, rows, and other nodes in any order."""
    b, rng = pl.GraphBuilder(), np.random.default_rng(draw(st.integers(0, 99)))
    tensors = [b.input("x", "float32", (3, 4))]
    for _ in range(draw(st.integers(2, 12))):
        one, two = (draw(st.sampled_from(tensors[-3:])) for _ in range(2))
        op = draw(st.sampled_from(["MatMul", "Gemm", "row", "row", "Relu", "Relu", "Add", "Neg"]))
        weights, row = (rng.integers(-1, 2, shape).astype("f") for shape in ((4, 4), (4,)))
        given = {"MatMul": (weights,), "Gemm": (weights, row), "row": (row,), "Add": (two,)}
        tensors.append(b.op("Add" if op == "row" else op, one, *given.get(op, ())))
    b.output("y", tensors[-1])
    b.output("z", draw(st.sampled_from(tensors[1:])))
    return b.build()


@pytest.mark.extended
@settings(max_examples=60, deadline=None)
@given(perceptrons(), st.sampled_from(SEEDS), st.booleans())
def test_dense_layers_are_right_where_tensors_share_memory(
    graph: Graph, seed: int, plans: bool
) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4) % 5 - 2
    found = pl.run(graph, {"x": x}, devices=[CupyDouble(seed).generating(graphs=plans)])
    wanted = pl.run(graph, {"x": x}, devices=["cpu"])
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name])
