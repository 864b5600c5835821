"""Any valid node of any operator gives on every device what its definition says.

The strategies are in tests/support/node_strategies. What they draw is valid: an error is a failure.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import numpy as np
import pytest
from bound import Bound
from every_device import SUBJECTS
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from node_strategies.catalogue import STRATEGIES
from node_strategies.comparing import check
from node_strategies.drawing import NodeCase
from plait.devices import Device
from plait.graph.core.ir import Graph
from plait.graph.core.operator import find_operator, list_operators
from plait.graph.operators.bounded_call import CALLS
from plait.graph.operators.each import EACH
from plait.graph.operators.reduce_rows import REDUCE_ROWS
from single_node import AnyArray, run_node, single_node_graph, trim
from thirds import leave_to_test_all

EXAMPLES = int(os.environ.get("PLAIT_NODE_EXAMPLES", "8"))
"""For each operator; set it to some hundreds to look for what has not been seen yet."""

RUN_BY_SESSIONS = ("If", "Loop", "Scan", "Variable")
OPERATORS = tuple(
    name
    for name in list_operators()
    if ".graph.operators." in find_operator(name).infer.__module__
    and not name.startswith(("cvm.", "Bounded."))
    and name not in (*RUN_BY_SESSIONS, *CALLS, REDUCE_ROWS, EACH)
    and (find_operator(name).draws is None or name == "Dropout")
)
"""All that have a kernel, or one for what they compute into larger buffers.

What draws random numbers is written with Philox; of Dropout there is what drops nothing.
"""

UNHURRIED = (HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large)

KINDS = ("formal", "cpu", "worker", "sim", "compiled")


class Devices:
    """One device of each kind that this machine has, open."""

    def __init__(self) -> None:
        self._opened = ExitStack()
        self.by_kind: dict[str, Device] = {}
        for subject in SUBJECTS:
            if subject.kind in KINDS:
                try:
                    device = self._opened.enter_context(subject.opened())
                except pytest.skip.Exception:
                    continue
                self.by_kind[subject.kind] = device

    def run(self, kind: str, graph: Graph, fed: dict[str, AnyArray]) -> list[AnyArray]:
        with Bound(self.by_kind[kind], graph) as bound:
            results = bound.run(fed)
        found = [results[name] for name in graph.outputs]
        return trim(found) if graph.nodes[0].op.startswith("Bounded.") else found

    def close(self) -> None:
        self._opened.close()


@pytest.fixture(scope="module")
def devices() -> Iterator[Devices]:
    opened = Devices()
    yield opened
    opened.close()


def same_bits(results: Sequence[AnyArray], reference: Sequence[AnyArray]) -> None:
    for found, wanted in zip(results, reference, strict=True):
        np.testing.assert_array_equal(found, wanted)
        assert found.tobytes() == wanted.tobytes(), "other zeros or NaNs"


def _some_inputs(case: NodeCase, data: st.DataObject) -> set[int]:
    """Draw inputs that are constant as well, all but the first: kernels prepare those once."""
    given = [i for i, x in enumerate(case.inputs) if i and x is not None]
    return set(data.draw(st.lists(st.sampled_from(given), unique=True))) if given else set()


def test_every_operator_is_drawn() -> None:
    assert set(STRATEGIES) == set(OPERATORS)


@pytest.mark.parametrize("op", leave_to_test_all(sorted(STRATEGIES), third=0))
@settings(max_examples=EXAMPLES, suppress_health_check=UNHURRIED)
@given(data=st.data())
def test_devices_agree_with_the_definition(devices: Devices, op: str, data: st.DataObject) -> None:
    case = STRATEGIES[op](data.draw)
    name, n_outputs = op, case.n_outputs
    if find_operator(op).bounded:
        name, n_outputs = f"Bounded.{op}", n_outputs + 1
    constant = {*case.constant, *_some_inputs(case, data)}
    graph = single_node_graph(name, case.inputs, case.attributes, n_outputs, constant)
    assume(all(spec.size < 3000 for spec in graph.tensors.values()))
    fed = {x: np.asarray(case.inputs[int(x[1:])]) for x in graph.inputs}
    definition = devices.run("formal", graph, fed)
    reference = devices.run("cpu", graph, fed)
    check(case, reference, definition)
    if "compiled" in devices.by_kind:
        check(case, devices.run("compiled", graph, fed), definition)
    also = data.draw(st.sampled_from(["sim", "worker", "bindings", "none"]))
    if also in devices.by_kind:
        same_bits(devices.run(also, graph, fed), reference)
    elif also == "bindings" and name == op:
        same_bits(run_node(op, case.inputs, case.attributes, n_outputs, constant), reference)
