"""Nodes drawn at random give on generated kernels what their definitions say."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import plait as pl
import pytest
from bound import Bound
from generated_code import run_generated
from generators import list_generated_ops
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from node_strategies import (
    attending,
    contraction,
    exact,
    normalization,
    quantization,
    reduction,
    sampling,
    windows,
)
from node_strategies.comparing import check
from node_strategies.drawing import NodeCase
from plait.devices.codegen.registry import find_refusal
from plait.devices.formal.device import FormalDevice
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from single_node import single_node_graph

EXAMPLES = max(1, int(os.environ.get("PLAIT_NODE_EXAMPLES", "25")) // 25)
"""For each operator; set it to some hundreds to look for what has not been seen yet."""

FAMILIES = (
    attending,
    contraction,
    exact,
    normalization,
    quantization,
    reduction,
    sampling,
    windows,
)
STRATEGIES = {
    op: strategy
    for family in FAMILIES
    for op, strategy in family.STRATEGIES.items()
    if op in list_generated_ops()
}


def drawn(op: str, examples: int = EXAMPLES) -> list[tuple[NodeCase, Graph]]:
    """Return nodes that have code, the same ones each time."""
    found: list[tuple[NodeCase, Graph]] = []

    @settings(
        max_examples=4 * examples,
        phases=[Phase.generate],
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def collect(data: st.DataObject) -> None:
        case = STRATEGIES[op](data.draw)
        given_inputs = range(1, len(case.inputs))
        constant = {*case.constant, *(given_inputs if data.draw(st.booleans()) else ())}
        graph = single_node_graph(op, case.inputs, case.attributes, case.n_outputs, constant)
        (node,) = graph.nodes
        small = all(spec.size < 3000 for spec in graph.tensors.values())
        if small and find_refusal(node, graph.call(node)) is None:
            found.append((case, graph))

    collect()
    return found[-examples:]  # the first ones are the simplest


@pytest.fixture(scope="module")
def formal() -> Iterator[FormalDevice]:
    device = FormalDevice()
    device.open()
    yield device
    device.close()


@pytest.mark.slow
def test_drawn_nodes_give_what_their_definitions_say(formal: FormalDevice) -> None:
    """All in one program: compiling takes longer than all else."""
    builder, feeds = pl.GraphBuilder("drawn"), dict[str, Array]()
    cases = {f"{op}{i}/": made for op in STRATEGIES for i, made in enumerate(drawn(op))}
    assert len(cases) >= EXAMPLES * 35
    for prefix, (case, graph) in cases.items():
        inputs = {name: np.asarray(case.inputs[int(name[1:])]) for name in graph.inputs}
        fed = {name: builder.input(prefix + name, x.dtype, x.shape) for name, x in inputs.items()}
        feeds |= {prefix + name: x for name, x in inputs.items()}
        for name, tensor in builder.include(graph, fed, prefix).items():
            builder.output(f"{prefix}{name}", tensor)
    every = builder.build()
    found = run_generated(every, feeds)
    with Bound(formal, every) as bound:
        definition = bound.run(feeds)
    for prefix, (case, graph) in cases.items():
        names = [prefix + name for name in graph.outputs]
        try:
            check(case, [found[name] for name in names], [definition[name] for name in names])
        except AssertionError as error:
            raise AssertionError(f"{prefix} {graph.nodes[0]} of {case.inputs}: {error}") from None
