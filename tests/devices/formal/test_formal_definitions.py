"""Every definition against the results that ONNX wrote down."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bound import Bound
from onnx_suite import Case, check_like_onnx, suite
from plait.devices import Device
from plait.devices.formal.device import FormalDevice
from plait.devices.formal.registry import find_definition, list_definitions
from plait.graph.core.operator import find_operator

pytestmark = pytest.mark.slow

MOST_ELEMENTS = 20_000
"""Of all tensors: each costs microseconds, where windows and products are summed many times."""

FEW_ELEMENTS = 1_000
"""The same for graphs of many nodes, of which there are hundreds."""

IN_THE_SUITE = tuple(
    op
    for op in list_definitions()
    if not op.startswith("cvm.") and find_operator(op).bounded is None
)
"""Those of ONNX that write outputs of known shapes: the others have tests of their own."""

MISSING_FROM_ONNX = (
    *("Cofactors", "ConvWeightsGradient", "GlobalLpPool", "MaxPoolGradient", "Philox"),
    *("After", "Assign", "Fused", "Group"),
)


def size(case: Case) -> int:
    return sum(spec.size for spec in case.graph.tensors.values())


def is_small(case: Case) -> bool:
    return size(case) <= MOST_ELEMENTS


def is_defined(case: Case) -> bool:
    return all(find_definition(node.op) for node in case.graph.nodes)


def small_cases(op: str) -> list[Case]:
    return [case for case in suite().nodes.get(op, []) if is_small(case)]


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    made = FormalDevice()
    made.open()
    yield made
    made.close()


@pytest.mark.parametrize("op", IN_THE_SUITE)
def test_a_definition_gives_what_onnx_says(device: Device, op: str) -> None:
    cases = small_cases(op)
    assert cases or op in MISSING_FROM_ONNX
    for case in cases:
        with Bound(device, case.graph) as bound:
            check_like_onnx(case, bound.run(case.inputs))


def test_few_cases_are_left_out_for_their_size() -> None:
    cases = [case for op in IN_THE_SUITE for case in suite().nodes.get(op, [])]
    large = [case.name for case in cases if not is_small(case)]
    assert len(large) < len(cases) / 50


def test_operators_written_out_by_simpler_ones_give_what_onnx_says(device: Device) -> None:
    cases = [case for case in suite().functions if size(case) <= FEW_ELEMENTS and is_defined(case)]
    assert len(cases) > 100
    for case in cases:
        with Bound(device, case.graph) as bound:
            check_like_onnx(case, bound.run(case.inputs))
