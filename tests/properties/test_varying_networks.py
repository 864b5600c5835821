"""Lengths that follow from values, results without readers, special values: numpy's results."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plait.graph.values.tensor import Array
from varying_networks import VaryingNetwork
from varying_steps import STEPS

ASKED = os.environ.get("PLAIT_RANDOM_GRAPHS")
EXAMPLES = int(ASKED or 60)
DEVICES = ("cpu", "formal", "sim:a", *(("worker:0", "compiled", "ort") if ASKED else ()))
UNHURRIED = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture)


@pytest.fixture(scope="module")
def devices() -> list[str]:
    return [name for name in DEVICES if pl.devices.probe(name).found]


def make_plan(
    net: VaryingNetwork, graph: pl.Graph, devices: list[str], rng: random.Random
) -> pl.Plan:
    """Return a plan: with bounds for all lengths, for those that are fed, or for none."""
    chosen = rng.sample(devices, rng.randint(1, len(devices)))
    lengths = net.lengths(graph)
    fed = {dim for name in graph.inputs for dim in graph.tensors[name].shape or ()}
    bounds: dict[str, Any] = {
        symbol: (min(found), max(1, *found) + rng.randint(0, 3))
        for symbol, found in lengths.items()
    }
    calls = any(node.op.startswith("varying.") for node in graph.nodes)
    given = "all" if calls else rng.choice(["all", "all", "fed", "none"])
    if given == "fed":
        bounds = {symbol: pair for symbol, pair in bounds.items() if symbol in fed}
    options: dict[str, Any] = {"max_in_flight": rng.randint(1, 3)}
    if given != "none" and bounds:
        options["bounds"] = bounds
    if rng.random() < 0.2:
        options["passes"] = ()
    return pl.plan(graph, list(dict.fromkeys([*chosen, "cpu"])), **options)


def run_items(
    plan: pl.Plan, items: list[dict[str, Array]], rng: random.Random
) -> list[dict[str, Array]]:
    names = list(plan.graph.outputs)
    with pl.BlockingSession(plan) as session:
        if rng.random() < 0.5:
            return [dict(item.outputs) for item in session.stream(items)]
        if rng.random() < 0.5:
            return [dict(session.run(item)) for item in items]
        found = []
        for item in items:
            fetched = rng.sample(names, rng.randint(1, len(names)))
            found.append(dict(zip(fetched, session.run(item, fetched), strict=True)))
        return found


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=UNHURRIED)
@given(rng=st.randoms(use_true_random=False))
def test_results_are_those_of_numpy(devices: list[str], tmp_path: Path, rng: random.Random) -> None:
    net = VaryingNetwork(rng)
    graph = net.build(rng.randint(1, 12), STEPS)
    plan = make_plan(net, graph, devices, rng)
    if rng.random() < 0.2:
        plan.save(tmp_path / "a.plan")
        plan = pl.load_plan(tmp_path / "a.plan")
    for found, wanted in zip(run_items(plan, net.items, rng), net.wanted, strict=True):
        for name, array in found.items():
            check(array, wanted[name], name, is_exact=net.exact[name])


def check(found: Array, wanted: Array, name: str, *, is_exact: bool) -> None:
    assert found.dtype == wanted.dtype, name
    assert found.shape == wanted.shape, name
    if is_exact:
        np.testing.assert_array_equal(found, wanted, err_msg=name)
        return
    finite = wanted[np.isfinite(wanted)]
    scale = np.abs(finite).max(initial=1)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5 * scale, err_msg=name)
