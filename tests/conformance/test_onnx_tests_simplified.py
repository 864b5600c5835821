"""The node tests of ONNX after all passes: still what ONNX says, and nothing left to do."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache

import plait as pl
import pytest
from onnx_suite import Case, check_like_onnx, suite
from plait.graph.core.ir import Graph
from plait.graph.passes import PASSES
from plait.graph.passes.pipeline import run_passes

pytestmark = pytest.mark.slow

LEAST_CHANGED = 100
"""Fewer, and this tests nothing."""


@cache
def simplified() -> Sequence[tuple[Case, Graph]]:
    """Return all cases, with their graphs after passes, each checked after each pass."""
    cases = [case for listed in suite().nodes.values() for case in listed]
    cases += suite().functions
    return [(case, run_passes(case.graph, PASSES, checked=True)[0]) for case in cases]


@pytest.mark.extended
def test_what_passes_changed_still_gives_what_onnx_says() -> None:
    changed = [(case, after) for case, after in simplified() if after is not case.graph]
    assert len(changed) >= LEAST_CHANGED
    with warnings.catch_warnings():  # numpy's, about numbers that make good tests
        warnings.simplefilter("ignore")
        for case, after in changed:
            plan = pl.plan(after, passes=())
            check_like_onnx(case, pl.run(plan, case.inputs))


def test_a_second_run_changes_nothing() -> None:
    restless = {
        case.name: [str(one) for one in applied]
        for case, after in simplified()
        for applied in [run_passes(after, PASSES)[1]]
        if applied
    }
    assert restless == {}
