"""Networks on `ort` as exporters write them: lengths become values, and those become constants."""

from __future__ import annotations

import numpy as np
import plait as pl
import pytest
from nested_graphs import scaled
from plait.devices import Support
from plait.devices.device import check_support, supports_lengths
from plait.graph.core.ir import Graph, Node
from plait.graph.core.operator import Call
from plait.graph.values.tensor import Array
from plait.scheduler.runtime.opened import open_plans
from plait.scheduler.shapes.specialise import specialise

pytest.importorskip("onnxruntime")
from plait.devices.ort import session as ort_session
from plait.devices.ort.device import OrtDevice

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


def test_no_kernel_is_asked_for_at_a_new_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking takes longer than all other work for a new length."""
    asked: list[str] = []
    supports = OrtDevice.supports

    def note(self: OrtDevice, node: Node, call: Call) -> Support:
        asked.append(node.name)
        return supports(self, node, call)

    monkeypatch.setattr(OrtDevice, "supports", note)
    with pl.BlockingSession(pl.plan(encoder(), ["ort"], bounds={"n": MOST})) as session:
        session.run({"x": np.zeros((5, WIDTH), "float32")})
        asked.clear()
        for n in LENGTHS:
            x = random.standard_normal((n, WIDTH), "float32")
            np.testing.assert_allclose(session.run({"x": x})["y"], wanted(x), 1e-4, 1e-4)
    assert not asked


def test_known_differences_are_asked_for_at_each_length() -> None:
    """ONNX Runtime reflects once; a pad of 3 needs more than that from 3 numbers on."""
    b = pl.GraphBuilder("reflect")
    x = b.input("x", "float32", ("n", "m"))
    b.output("y", b.op("Pad", x, np.array([0, 3, 0, 3]), mode="reflect"))
    device = pl.device("ort")
    for length in (9, 4, 3):
        graph = specialise(b.build(), {"x": (2, length)})
        (node,) = graph.nodes
        asked = check_support(graph, node, device).ok
        assert supports_lengths(graph, node, device) is asked
        assert asked is (length > 3)


def test_a_branch_that_a_length_chooses_serves_other_lengths() -> None:
    b = pl.GraphBuilder("branches")
    x = b.input("x", "float32", ("n",))
    is_long = b.op("Greater", b.op("Size", x), np.int64(4))
    then, other = scaled("then", 2), scaled("else", 3)
    b.output("y", b.op("If", is_long, x, then_branch=then, else_branch=other).relu())
    plan = pl.plan(b.build(), "ort", bounds={"n": 9})
    with pl.BlockingSession(plan) as session:
        for n in (9, 5, 7, 3, 6):
            found = session.run({"x": np.ones(n, "float32")})["y"]
            assert found.tolist() == [2 if n > 4 else 3] * n


def test_results_are_right_where_parts_may_be_empty() -> None:
    b = pl.GraphBuilder("parts")
    x = b.input("x", "float32", ("n", 3))
    length = b.op("Slice", b.op("Shape", x), [0], [1], [0])
    parts = b.op("Split", b.op("Relu", x), axis=0, num_outputs=4, outputs=4)
    b.output("y", b.op("Concat", *reversed(parts), axis=0))
    b.output("z", b.op("Reshape", b.op("Exp", x), b.op("Concat", [3], length, axis=0)))
    plan = pl.plan(b.build(), ["ort", "cpu"], bounds={"n": (6, 30)})
    with pl.BlockingSession(plan) as session:
        for n in range(6, 31):
            given = random.standard_normal((n, 3), "float32")
            size = -(-n // 4)
            cut = [given[i * size : (i + 1) * size] for i in range(4)]
            found = session.run({"x": given})
            np.testing.assert_array_equal(found["y"], np.maximum(np.concatenate(cut[::-1]), 0))
            np.testing.assert_allclose(found["z"], np.exp(given).reshape(3, n), 1e-5)


def test_a_model_for_one_row_runs_for_any_number_of_rows() -> None:
    b = pl.GraphBuilder("steps first")
    b.output("y", b.input("x", "float32", (1, 4, 5)).transpose(2, 0, 1))
    each = pl.each(lambda n: np.full((1, 4, 5), n, "float32"), b.build())
    with pl.pipeline(each, example=[1, 2]) as pipe:
        pipe.open(pipe.plan(["ort:0", "cpu:0"]))
        for item in ([3], [], [4, 5, 6]):
            rows = np.array(item, "float32").reshape(-1, 1, 1, 1)
            np.testing.assert_array_equal(
                pipe.run(item), np.broadcast_to(rows, (len(item), 5, 1, 4))
            )
