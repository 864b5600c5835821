"""Networks on `ort` as exporters write them: lengths become values, and those become constants."""

from __future__ import annotations

import numpy as np
import plait as pl
import pytest
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from plait.scheduler.runtime.opened import open_plans

pytest.importorskip("onnxruntime")
from plait.devices.ort import session as ort_session

WIDTH, MOST = 64, 40
LENGTHS = (7, 12, 20, 33, 9, 14)
random = np.random.default_rng(0)
WEIGHTS = random.standard_normal((WIDTH, WIDTH), "float32")
CODES = random.standard_normal((MOST, WIDTH), "float32")


def encoder() -> Graph:
    """Return codes added by position, a state of zeros, and a Reshape to what a Shape says."""
    b = pl.GraphBuilder("encoder")
    x = b.input("x", "float32", ("n", WIDTH))
    length = b.op("Slice", b.op("Shape", x), [0], [1], [0])
    codes = b.op("Slice", b.constant(CODES, "codes"), [0], length, [0])
    state = b.op("Expand", np.float32(0), np.array([8, WIDTH]))
    y = b.op("MatMul", b.op("Add", x, codes), b.constant(WEIGHTS, "weights"))
    target = b.op("Concat", length, np.array([8, -1]), axis=0)
    y = b.op("Reshape", y, target)
    b.output("y", b.op("Add", y, b.op("ReduceSum", state)))
    return b.build()


def wanted(x: Array) -> Array:
    return ((x + CODES[: len(x)]) @ WEIGHTS).reshape(len(x), 8, -1)


def test_one_model_serves_all_lengths_and_its_weights_are_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loads: list[Graph] = []
    load = ort_session.Sessions._load

    def count(self: ort_session.Sessions, graph: Graph, threads: object) -> object:
        loads.append(graph)
        return load(self, graph, threads)  # type: ignore[arg-type]

    monkeypatch.setattr(ort_session.Sessions, "_load", count)
    monkeypatch.setattr(open_plans, "KEPT_NBYTES", 3 * WEIGHTS.nbytes + 40 * 4096)
    plan = pl.plan(encoder(), ["ort"], bounds={"n": MOST})
    with pl.BlockingSession(plan) as session:
        for turn in range(2):
            for n in LENGTHS:
                x = random.standard_normal((n, WIDTH), "float32")
                np.testing.assert_allclose(session.run({"x": x})["y"], wanted(x), 1e-4, 1e-4)
            if not turn:
                first = session.status().plans
        assert session.status().plans.hits - first.hits == len(LENGTHS)
    assert len(loads) == 2  # for the largest length, and for all


def test_what_is_computed_ahead_is_there_once_however_often() -> None:
    plans = [pl.plan(encoder(), ["cpu"], shapes={"x": (n, WIDTH)}) for n in (5, 5, 6)]
    codes = [
        {array.shape: array for array in plan.graph.constants.values()}.get((n, WIDTH))
        for n, plan in zip((5, 5, 6), plans, strict=True)
    ]
    assert codes[0] is not None
    assert codes[0] is codes[1]
    assert codes[2] is not None
