"""Nodes that become one kernel, by which nothing is read or written at the wrong time."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import plait as pl
import pytest
from generated_code import run_generated, run_pieces
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices import Program
from plait.devices.codegen import epilogue
from plait.devices.codegen.epilogue import Epilogue
from plait.devices.codegen.fusing import fuse
from plait.devices.codegen.pieces import Launch, Piece
from plait.devices.codegen.registry import Code, Kernel, Parameter
from plait.devices.cpu import CpuDevice
from plait.devices.device import scratch_name
from plait.devices.function_steps import Step
from plait.devices.memory import View, host_arena, host_view
from plait.devices.program import BoundProgram, bind_node
from plait.graph.core.ir import Graph, Node
from plait.graph.core.operator import Call, Specs
from plait.graph.values.tensor import Array, TensorSpec
from random_graphs import ORACLE, expected, feeds, graphs

RUBBISH = 0x77


def transposed(call: Call, outputs: Specs, ending: Epilogue) -> Code:
    """Stand for the generator of a product: what it reads is not what it writes in its place."""
    read = Parameter("x", "i32", "input", 0)
    body = "\n".join(ending.write("0", "0"))
    return Code((Kernel("transposed", (read, *ending.parameters), body, groups=1),))


class RacingDevice(CpuDevice):
    """Runs fused nodes as threads of a kernel may: element after element, in any order.

    Transpositions are taken for products; they have scratch, which holds rubbish when they run.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._rng = np.random.default_rng(seed)

    def scratch(self, node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
        own = super().scratch(node, call, outputs)
        return (TensorSpec("uint8", (64,)),) if node.op == "Transpose" else own

    def compile(
        self, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        steps: list[tuple[Node, Step]] = []
        for item in fuse(subgraph, views, epilogues=lambda node: True):
            if isinstance(item, Piece) and len(item.nodes) > 1:
                steps.append((item.nodes[-1], partial(self._race, subgraph, item, views)))
                continue
            node = item.nodes[0] if isinstance(item, Piece) else item
            bound = bind_node(np, "cpu", subgraph, node, views, subgraph.constants)
            steps.append((node, bound))
        return BoundProgram(self.name, subgraph, steps, measure)

    def _race(self, graph: Graph, piece: Piece, views: Mapping[str, View]) -> None:
        (launch,) = piece.queued
        assert isinstance(launch, Launch)
        stored = [
            launch.buffers[i]
            for i, p in enumerate(launch.kernel.parameters)
            if p in launch.kernel.written
        ]
        shape = graph.tensors[piece.nodes[-1].outputs[0]].static_shape
        names = [scratch_name(node, 0) for node in piece.nodes]
        scratch = [views[name].array for name in names if name in views]
        for array in scratch:
            array[:] = RUBBISH
        for place in self._rng.permutation(int(np.prod(shape))):
            values = _evaluated(graph, piece, views)
            for name in stored:
                views[name].array.flat[place] = values[name].flat[place]
        assert all((array == RUBBISH).all() for array in scratch)


def _evaluated(graph: Graph, piece: Piece, views: Mapping[str, View]) -> dict[str, Array]:
    """Return what the nodes of a piece yield, from what lies in memory now."""
    values: dict[str, Array] = dict(graph.constants)
    for node in piece.nodes:
        given = [values[name] if name in values else views[name].array for name in node.inputs]
        values[node.outputs[0]] = ORACLE[node.op](*given)
    return values


@settings(max_examples=40)
@given(graph=graphs(max_nodes=24), seed=st.integers(0, 99))
def test_fused_nodes_keep_to_the_memory_plan(graph: Graph, seed: int) -> None:
    inputs = feeds(graph, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(epilogue._generators, "Transpose", transposed)
        results = pl.run(graph, inputs, [RacingDevice(seed)])
    for name, wanted in expected(graph, inputs).items():
        np.testing.assert_array_equal(results[name], wanted)


def test_a_chain_becomes_one_kernel_that_writes_its_last_result_only() -> None:
    b = pl.GraphBuilder("chain")
    x = b.input("x", "float32", (4, 5))
    b.output("y", b.op("Relu", b.op("Mul", b.op("Neg", x), b.input("z", "float32", (5,)))))
    (piece,) = _pieces(b.build())
    (launch,) = piece.queued
    assert isinstance(launch, Launch)
    assert launch.buffers == ("x", "z", "y")


def test_what_others_read_is_written_too() -> None:
    b = pl.GraphBuilder("read elsewhere")
    middle = b.op("Exp", b.input("x", "float32", (6, 6)))
    b.output("middle", middle)
    b.output("y", b.op("Neg", middle))
    b.output("product", b.op("MatMul", middle, middle))
    pieces = [item for item in fuse(b.build(), {}) if isinstance(item, Piece)]
    (both,) = [piece for piece in pieces if len(piece.nodes) == 2]
    (launch,) = both.queued
    assert isinstance(launch, Launch)
    assert launch.buffers == ("x", "middle", "y")


def test_two_chains_that_meet_are_one_kernel() -> None:
    b = pl.GraphBuilder("meet")
    x = b.input("x", "float32", (8,))
    b.output("y", b.op("Add", b.op("Exp", x), b.op("Neg", b.op("Abs", x))))
    (piece,) = _pieces(b.build())
    assert len(piece.nodes) == 4


def test_a_small_chain_is_computed_where_it_is_repeated() -> None:
    b = pl.GraphBuilder("gate")
    gate = b.op("HardSigmoid", b.input("gate", "float32", (2, 3, 1, 1)))
    b.output("y", b.op("Mul", b.input("x", "float32", (2, 3, 4, 4)), gate))
    (piece,) = _pieces(b.build())
    assert len(piece.nodes) == 2


def test_a_small_chain_that_others_read_stays_apart() -> None:
    b = pl.GraphBuilder("gate")
    gate = b.op("HardSigmoid", b.input("gate", "float32", (2, 3, 1, 1)))
    b.output("y", b.op("Mul", b.input("x", "float32", (2, 3, 4, 4)), gate))
    b.output("gate_too", gate)
    assert len(_pieces(b.build())) == 2


def test_what_is_repeated_for_others_is_not_repeated_in_memory() -> None:
    b = pl.GraphBuilder("repeated")
    row = b.op("Expand", b.input("row", "float32", (5,)), np.array([4, 5]))
    b.output("y", b.op("Mul", b.input("x", "float32", (4, 5)), row))
    graph = b.build()
    (piece,) = _pieces(graph)
    inputs = {"row": np.arange(5, dtype=np.float32), "x": np.full((4, 5), 2, np.float32)}
    found = run_pieces(graph, [piece], inputs)
    np.testing.assert_array_equal(found["y"], inputs["x"] * inputs["row"])


def test_a_node_is_not_delayed_beyond_one_that_reads_it() -> None:
    """Exp cannot run with Sub, as the product between them needs it."""
    b = pl.GraphBuilder("between")
    raised = b.op("Exp", b.input("x", "float32", (4, 4)))
    b.output("y", b.op("Sub", raised, b.op("MatMul", raised, raised)))
    assert [len(item.nodes) for item in fuse(b.build(), {}) if isinstance(item, Piece)] == (
        [1, 1, 1]
    )


def test_a_node_is_not_delayed_beyond_one_that_overwrites_what_it_reads() -> None:
    """The transposition lies where x was."""
    graph = _with_a_transposition_between()
    specs = graph.tensors
    arena = host_arena(4096)
    places = dict.fromkeys(graph.tensors, 0)
    names = {node.op: node.outputs[0] for node in graph.nodes}
    apart = dict(zip(("x", "z", *names.values()), range(0, 4096, 256), strict=False))
    assert _sizes(graph, {**places, **apart}, arena, specs) == [1, 2]
    assert _sizes(graph, {**apart, names["Transpose"]: apart["x"]}, arena, specs) == [1, 1, 1]


def _with_a_transposition_between() -> Graph:
    b = pl.GraphBuilder("between")
    x, z = b.input("x", "float32", (4, 4)), b.input("z", "float32", (4, 4))
    raised = b.op("Exp", x)
    turned = b.op("Transpose", z)
    b.output("y", b.op("Neg", raised))
    b.output("turned", turned)
    return b.build()


def _sizes(
    graph: Graph, places: Mapping[str, int], arena: Any, specs: Mapping[str, TensorSpec]
) -> list[int]:
    views = {name: host_view(arena, places[name], spec) for name, spec in specs.items()}
    return [len(item.nodes) if isinstance(item, Piece) else 1 for item in fuse(graph, views)]


def test_nothing_is_written_over_what_is_read_at_other_places() -> None:
    """Of a row that is repeated, the first thread to write would ruin what the others read."""
    b = pl.GraphBuilder("repeated")
    row, x = b.input("row", "float32", (16,)), b.input("x", "float32", (16, 16))
    b.output("y", b.op("Neg", b.op("Add", x, row)))
    graph = b.build()
    arena = host_arena(4096)
    apart = {"row": 0, "x": 1024, graph.nodes[0].outputs[0]: 2048, "y": 3072}
    assert _sizes(graph, apart, arena, graph.tensors) == [2]
    assert _sizes(graph, {**apart, "y": apart["x"]}, arena, graph.tensors) == [2]
    assert _sizes(graph, {**apart, "y": apart["row"]}, arena, graph.tensors) == [1, 1]
    assert _sizes(graph, {**apart, "y": apart["x"] + 64}, arena, graph.tensors) == [1, 1]


def test_fusing_does_not_change_a_bit() -> None:
    """Halves are rounded between nodes as if they were stored."""
    b = pl.GraphBuilder("bits")
    x, z = b.input("x", "float16", (3, 7, 5)), b.input("z", "float16", (7, 1))
    chain = b.op("Mul", b.op("Sigmoid", b.op("Add", x, z)), b.op("Div", x, b.op("Sqrt", z)))
    b.output(
        "y",
        b.op("Sub", chain, b.op("Cast", b.op("Exp", b.op("Cast", x, to="float32")), to="float16")),
    )
    flag = b.op("Less", chain, x)
    b.output("chosen", b.op("Where", flag, chain, b.op("Round", b.op("Mul", x, np.float16(7.7)))))
    graph = b.build()
    rng = np.random.default_rng(3)
    inputs = {"x": rng.standard_normal((3, 7, 5)).astype(np.float16) * np.float16(3)}
    inputs["z"] = np.abs(rng.standard_normal((7, 1))).astype(np.float16)
    pieces = _pieces(graph)
    assert [len(piece.nodes) for piece in pieces] == [len(graph.nodes)]
    together, alone = run_pieces(graph, pieces, inputs), run_generated(graph, inputs)
    for name in graph.outputs:
        assert together[name].tobytes() == alone[name].tobytes()


def _pieces(graph: Graph) -> list[Piece]:
    pieces = []
    for item in fuse(graph, {}):
        assert isinstance(item, Piece)
        pieces.append(item)
    return pieces
