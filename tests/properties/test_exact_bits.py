"""Exact operators: any node that is valid yields by its kernel what it yields by its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from node_strategies.exact import INT32, STRATEGIES
from plait.devices.formal.registry import find_definition
from plait.devices.formal.results import to_dtype
from plait.graph.core.operator import find_operator, list_operators
from single_node import run_node


def test_every_exact_operator_is_drawn() -> None:
    assert set(STRATEGIES) == {op for op in list_operators() if op.startswith("cvm.")}


@pytest.mark.parametrize("op", STRATEGIES)
@settings(max_examples=25, suppress_health_check=[HealthCheck.filter_too_much])
@given(data=st.data())
def test_kernel_and_definition_agree(op: str, data: st.DataObject) -> None:
    case = STRATEGIES[op](data.draw)
    results = run_node(op, case.inputs, case.attributes, case.n_outputs)
    found = find_definition(op)
    assert found is not None
    complete = find_operator(op).complete(case.attributes, op)
    returned = found.function(*case.inputs, **complete)
    defined = returned if isinstance(returned, tuple) else (returned,)
    for result, wanted in zip(results, defined, strict=True):
        assert result.dtype == INT32
        np.testing.assert_array_equal(result, to_dtype(wanted, INT32))
