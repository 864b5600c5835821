"""A valid node that the `ort` device supports runs there: it is refused in planning or never."""

from __future__ import annotations

import os
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import plait as pl
import pytest
from bound import Bound
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from node_strategies.catalogue import STRATEGIES
from plait.devices import Device
from plait.devices.device import check_support
from plait.graph.core.operator import find_operator
from plait.graph.values.tensor import Array
from single_node import single_node_graph

EXAMPLES = int(os.environ.get("PLAIT_NODE_EXAMPLES", "15"))
UNHURRIED = (HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large)

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    pytest.importorskip("onnxruntime")
    made = pl.device("ort")
    made.open(1)
    yield made
    made.close()


@pytest.mark.parametrize("op", sorted(op for op in STRATEGIES if not find_operator(op).bounded))
@settings(max_examples=EXAMPLES, suppress_health_check=UNHURRIED)
@given(data=st.data())
def test_a_node_is_supported_only_if_it_runs(device: Device, op: str, data: st.DataObject) -> None:
    case = STRATEGIES[op](data.draw)
    constant = set(case.constant)
    if data.draw(st.booleans()):
        constant |= {index for index, x in enumerate(case.inputs) if index and x is not None}
    inputs = list(case.inputs)
    if data.draw(st.booleans()):
        inputs = [_to_bfloat16(x) if x is not None else None for x in inputs]
    try:
        graph = single_node_graph(op, inputs, case.attributes, case.n_outputs, constant)
    except pl.GraphError:
        assume(False)  # not every operator takes bfloat16
    assume(all(spec.size < 3000 for spec in graph.tensors.values()))
    if check_support(graph, graph.nodes[0], device).ok:
        with Bound(device, graph) as bound:
            bound.run({x: np.asarray(inputs[int(x[1:])]) for x in graph.inputs})


def _to_bfloat16(x: Array) -> Array:
    return x.astype(ml_dtypes.bfloat16) if x.dtype == np.float16 else x
