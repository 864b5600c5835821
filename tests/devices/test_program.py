from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from plait.devices import program
from plait.devices.device import scratch_name
from plait.devices.errors import DeviceMemoryError, KernelError
from plait.devices.event import CancelledWorkError, Event
from plait.devices.kernels import registry
from plait.devices.kernels.registry import find_kernel, kernel, list_kernels
from plait.devices.memory import View, host_arena, host_view
from plait.devices.program import BoundProgram
from plait.graph.building.builder import GraphBuilder
from plait.graph.core.ir import Graph
from plait.graph.core.operator import Call, Specs, define
from plait.graph.functions.python import operator
from plait.graph.values.errors import GraphError
from plait.graph.values.tensor import Array, TensorSpec

pytestmark = pytest.mark.usefixtures("forget_operators")

SLOT = 256


@pytest.fixture(autouse=True)
def _forget_kernels() -> Iterator[None]:
    list_kernels()  # a family registers its own once, when it is imported
    known = dict(registry._kernels)
    yield
    registry._kernels.clear()
    registry._kernels.update(known)


def views_of(graph: Graph, scratch: dict[str, TensorSpec] | None = None) -> dict[str, View]:
    """Place every tensor but constants, and the scratch buffers, in slots of their own."""
    specs = {name: spec for name, spec in graph.tensors.items() if name not in graph.constants}
    specs |= scratch or {}
    arena = host_arena(SLOT * len(specs))
    return {name: host_view(arena, SLOT * i, spec) for i, (name, spec) in enumerate(specs.items())}


def bind(graph: Graph, views: dict[str, View], *, measure: bool = False) -> BoundProgram:
    return program.bind(np, "cpu", graph, views, graph.constants, measure=measure)


def run(graph: Graph, **feeds: Any) -> dict[str, Array]:
    views = views_of(graph)
    for name, value in feeds.items():
        views[name].array[...] = value
    bind(graph, views)()
    return {name: views[name].array for name in graph.outputs}


def single(function: Any, *, dtype: str = "float32", **attributes: Any) -> Graph:
    """One call of a Python function on x."""
    b = GraphBuilder("g")
    b.output("y", b.call(function, b.input("x", dtype, (3,)), name="call", **attributes))
    return b.build()


def test_nodes_run_in_order_on_their_views() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (3,))
    b.output("y", b.op("Relu", b.op("Add", x, np.array([0, 1, 2], np.float32))))
    assert run(b.build(), x=[-5, -1, 5])["y"].tolist() == [0, 0, 7]


def test_a_program_runs_again_on_new_contents() -> None:
    b = GraphBuilder()
    b.output("y", b.op("Relu", b.input("x", "float32", (3,))))
    graph = b.build()
    views = views_of(graph)
    bound = bind(graph, views)
    for contents in ([1, -1, 2], [-3, 3, 0]):
        views["x"].array[...] = contents
        bound()
        assert views["y"].array.tolist() == [max(value, 0) for value in contents]


def test_a_program_knows_its_subgraph() -> None:
    graph = single_relu()
    assert bind(graph, views_of(graph)).graph is graph


def single_relu() -> Graph:
    b = GraphBuilder("g")
    b.output("y", b.op("Relu", b.input("x", "float32", (3,)), name="relu"))
    return b.build()


def test_a_node_on_its_input_s_bytes_needs_no_step() -> None:
    b = GraphBuilder()
    b.output("y", b.op("Identity", b.input("x", "float32", (3,))))
    graph = b.build()
    views = views_of(graph)
    views["y"] = views["x"]
    bound = bind(graph, views, measure=True)
    bound()
    assert bound.node_ns == (0,)


def test_a_view_node_elsewhere_copies() -> None:
    b = GraphBuilder()
    b.output("y", b.op("Identity", b.input("x", "float32", (3,))))
    assert run(b.build(), x=[1, 2, 3])["y"].tolist() == [1, 2, 3]


def test_a_view_node_of_a_constant_copies() -> None:
    b = GraphBuilder()
    b.output("y", b.constant(np.array([4, 5], np.float32)))
    assert run(b.build())["y"].tolist() == [4, 5]


def test_an_absent_input_reaches_a_kernel_as_none() -> None:
    define("test.Clip", inputs="x low? high")(lambda call: (call.spec(0),))

    @kernel("test.Clip")
    def clip(xp: Any, inputs: Any, outputs: Any, attributes: Any) -> None:
        assert inputs[1] is None
        xp.minimum(inputs[0], inputs[2], out=outputs[0])

    b = GraphBuilder()
    b.output("y", b.op("test.Clip", b.input("x", "float32", (3,)), None, 2.0))
    assert run(b.build(), x=[1, 2, 3])["y"].tolist() == [1, 2, 2]


def test_a_binding_kernel_is_called_once_per_program() -> None:
    define("test.Count", inputs="x")(lambda call: (call.spec(0),))
    made: list[str] = []

    @kernel("test.Count", binds=True)
    def count(xp: Any, inputs: Any, outputs: Any, attributes: Any) -> Any:
        made.append("bound")
        return lambda: xp.add(inputs[0], 1, out=outputs[0])

    b = GraphBuilder()
    b.output("y", b.op("test.Count", b.input("x", "float32", (3,))))
    graph = b.build()
    views = views_of(graph)
    bound = bind(graph, views)
    bound()
    bound()
    assert made == ["bound"]
    assert views["y"].array.tolist() == [1, 1, 1]


def test_a_kernel_gets_the_scratch_that_it_declares() -> None:
    define("test.Swap", inputs="x")(lambda call: (call.spec(0),))

    def needs(call: Call, outputs: Specs) -> Specs:
        return (call.spec(0), TensorSpec("int8", (1,)))

    @kernel("test.Swap", scratch=needs)
    def swap(xp: Any, inputs: Any, outputs: Any, attributes: Any, scratch: Any) -> None:
        xp.negative(inputs[0], out=scratch[0])
        xp.add(scratch[0], scratch[1], out=outputs[0])

    b = GraphBuilder()
    b.output("y", b.op("test.Swap", b.input("x", "float32", (3,)), name="swap"))
    graph = b.build()
    node, call = graph.nodes[0], graph.call(graph.nodes[0])
    specs = program.scratch(node, "cpu", call, graph.output_specs(node))
    views = views_of(graph, {scratch_name(node, i): spec for i, spec in enumerate(specs)})
    views["x"].array[...] = [1, 2, 3]
    views[scratch_name(node, 1)].array[...] = 10
    bind(graph, views)()
    assert views["y"].array.tolist() == [9, 8, 7]


def test_a_kernel_without_scratch_needs_none() -> None:
    graph = single_relu()
    node = graph.nodes[0]
    assert program.scratch(node, "cpu", graph.call(node), graph.output_specs(node)) == ()


def test_a_kernel_of_the_device_s_kind_wins_over_the_one_for_any() -> None:
    define("test.Which", inputs="x")(lambda call: (call.spec(0),))

    @kernel("test.Which", device="cpu")
    def special(xp: Any, inputs: Any, outputs: Any, attributes: Any) -> None:
        outputs[0].fill(1)

    @kernel("test.Which")
    def general(xp: Any, inputs: Any, outputs: Any, attributes: Any) -> None:
        outputs[0].fill(2)

    b = GraphBuilder()
    b.output("y", b.op("test.Which", b.input("x", "float32", (3,))))
    graph = b.build()
    assert run(graph)["y"].tolist() == [1, 1, 1]
    views = views_of(graph)
    program.bind(np, "other:0", graph, views, {})()
    assert views["y"].array.tolist() == [2, 2, 2]


def test_an_operator_has_one_kernel_per_kind_of_device() -> None:
    with pytest.raises(GraphError) as caught:
        kernel("Relu")(lambda xp, inputs, outputs, attributes: None)
    assert str(caught.value) == (
        "two kernels for 'Relu' on 'any'\n"
        "  fix: remove one, or say by when= or score= which of them serves for what"
    )


def test_kernels_are_listed() -> None:
    found = find_kernel("Relu", "cpu")
    assert found in list_kernels()


def test_support_takes_a_kernel() -> None:
    assert program.supports(single_relu().nodes[0], "cpu", runs_python=True) == (
        True,
        "has a kernel",
    )


def test_missing_support_names_the_operator() -> None:
    define("test.Rare", inputs="x")(lambda call: (call.spec(0),))
    node = replace(single_relu().nodes[0], op="test.Rare")
    assert program.supports(node, "cpu", runs_python=True) == (
        False,
        "no kernel for 'test.Rare' on 'cpu' devices",
    )


def test_python_functions_are_supported_where_python_runs() -> None:
    @operator(name="test.f")
    def f(x: Array) -> Array:
        return x

    node = single(f).nodes[0]
    assert program.supports(node, "cpu", runs_python=True) == (True, "runs Python functions")
    assert program.supports(node, "cuda", runs_python=False) == (
        False,
        "Python functions do not run on 'cuda' devices",
    )


def test_a_python_function_writes_into_its_view() -> None:
    @operator(name="test.f")
    def f(x: Array, *, by: float = 2.0) -> Array:
        return x * np.float32(by)

    assert run(single(f, by=3.0), x=[1, 2, 3])["y"].tolist() == [3, 6, 9]


def test_a_python_function_may_return_its_input() -> None:
    @operator(name="test.f")
    def f(x: Array) -> Array:
        return x[::-1]

    assert run(single(f), x=[1, 2, 3])["y"].tolist() == [3, 2, 1]


def test_a_python_function_cannot_write_to_its_input() -> None:
    @operator(name="test.f")
    def f(x: Array) -> Array:
        x[0] = 1
        return x

    with pytest.raises(KernelError) as caught:
        run(single(f))
    assert caught.value.what == "ValueError: assignment destination is read-only"


def test_a_python_function_sees_an_absent_input_as_its_default() -> None:
    @operator(TensorSpec("float32", (3,)), name="test.f")
    def f(x: Array, y: Array | None = None, z: Array | None = None) -> Array:
        return np.full(3, (y is None) + 2 * (z is None), np.float32)

    b = GraphBuilder()
    x = b.input("x", "float32", (3,))
    b.output("y", b.call(f, x, None, x))
    b.output("z", b.call(f, x, None, None))
    outputs = run(b.build())
    assert [outputs["y"][0], outputs["z"][0]] == [1, 3]


def test_an_output_that_is_left_out_is_thrown_away() -> None:
    spec = TensorSpec("float32", (3,))

    @operator([spec, spec], name="test.f")
    def f(x: Array) -> tuple[Array, Array]:
        return x, x + np.float32(1)

    b = GraphBuilder()
    _, second = b.call(f, b.input("x", "float32", (3,)), outputs=["", "second"])
    b.output("y", second)
    assert run(b.build(), x=[1, 2, 3])["y"].tolist() == [2, 3, 4]


def test_a_function_that_raises_becomes_a_kernel_error_that_names_the_node() -> None:
    @operator(name="test.f")
    def f(x: Array) -> Array:
        raise LookupError("no such thing")

    with pytest.raises(KernelError) as caught:
        run(single(f))
    assert str(caught.value) == (
        "LookupError: no such thing\n  at:  node 'call': test.f(x) -> y, on device 'cpu'"
    )
    assert isinstance(caught.value.__cause__, LookupError)


def test_a_function_that_breaks_its_declaration_says_how_to_fix_it() -> None:
    @operator(name="test.f")
    def f(x: Array) -> Array:
        return x.astype("float64")

    with pytest.raises(KernelError) as caught:
        run(single(f))
    assert str(caught.value) == (
        "output 0 of the function is float64[3], declared was float32[3]\n"
        "  at:  node 'call': test.f(x) -> y, on device 'cpu'\n"
        "  fix: convert it: np.asarray(result, 'float32'), or declare the other dtype"
    )


@pytest.mark.parametrize("measure", [False, True])
def test_the_node_that_failed_is_named_among_many(measure: bool) -> None:
    @operator(name="test.f")
    def f(x: Array) -> Array:
        raise LookupError

    b = GraphBuilder()
    x = b.op("Relu", b.input("x", "float32", (3,)))
    b.output("y", b.op("Relu", b.call(f, x, name="bad"), name="last"))
    graph = b.build()
    with pytest.raises(KernelError, match="node 'bad'"):
        bind(graph, views_of(graph), measure=measure)()


def test_measuring_leaves_one_time_per_node_with_the_event() -> None:
    b = GraphBuilder()
    x = b.op("Identity", b.op("Relu", b.input("x", "float32", (3,))))
    b.output("y", b.op("Relu", x))
    graph = b.build()
    bound, event = bind(graph, views_of(graph), measure=True), Event()
    bound.run(event)
    assert bound.measures
    assert event.node_ns is not None
    assert len(event.node_ns) == 3
    assert sum(event.node_ns) > 0


@pytest.mark.parametrize("measure", [False, True])
def test_the_node_that_runs_when_an_event_is_cancelled_is_the_last(measure: bool) -> None:
    event, ran = Event(), list[str]()

    @operator(name="test.cancel")
    def cancel(x: Array) -> Array:
        ran.append("cancel")
        event.cancel()
        return x

    @operator(name="test.later")
    def later(x: Array) -> Array:
        ran.append("later")
        return x

    b = GraphBuilder()
    x = b.call(cancel, b.input("x", "float32", (3,)))
    b.output("y", b.call(later, x, name="last"))
    graph = b.build()
    with pytest.raises(CancelledWorkError, match="before node 'last'"):
        bind(graph, views_of(graph), measure=measure).run(event)
    assert ran == ["cancel"]
    assert event.node_ns is None


def test_a_node_without_memory_is_an_error_of_the_device() -> None:
    @operator(name="test.full")
    def full(x: Array) -> Array:
        raise MemoryError("cannot allocate 8 EiB")

    graph = single(full)
    with pytest.raises(DeviceMemoryError, match="cannot allocate 8 EiB") as caught:
        bind(graph, views_of(graph))()
    assert caught.value.at == "node 'call': test.full(x) -> y, on device 'cpu'"
    assert isinstance(caught.value.__cause__, MemoryError)


def test_without_measuring_there_are_no_times() -> None:
    graph = single_relu()
    bound = bind(graph, views_of(graph))
    bound()
    assert not bound.measures
    assert bound.node_ns is None
