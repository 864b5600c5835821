from __future__ import annotations

import json
import re

import numpy as np
import plait as pl
import pytest
from plait.scheduler.profile import Profile

pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")


def network() -> pl.Graph:
    """Two products with an elementwise node between them, which ONNX Runtime joins with nothing."""
    builder = pl.GraphBuilder("network")
    h = builder.op("MatMul", builder.input("x", "float32", (64, 64)), np.eye(64, dtype="float32"))
    h = builder.op("Tanh", h, name="bend")
    builder.output("y", builder.op("MatMul", h, np.eye(64, dtype="float32"), name="last"))
    return builder.build()


def profiled(plan: pl.Plan, *, measure: bool) -> Profile:
    with pl.BlockingSession(plan, measure=measure) as session:
        for _ in range(5):
            session.run({"x": np.ones((64, 64), "float32")})
        return session.profile()


@pytest.mark.parametrize("measure", [False, True])
def test_nodes_inside_of_onnx_runtime_are_asked_about_by_shares_of_its_time(measure: bool) -> None:
    plan = pl.plan(network(), ["ort"])
    answer = profiled(plan, measure=measure).what_if(plan, {"MatMul": 2})
    assert set(answer.basis.values()) == {"profiled share"}
    assert len(answer.basis) == 2
    assert "time of 2 nodes: a share of the measured time of its subgraph" in str(answer)
    assert json.loads(json.dumps(answer.to_dict()))["basis"] == answer.basis


def test_an_answer_tells_what_was_measured_from_shares() -> None:
    plan = pl.plan(network(), ["cpu", "ort"], pin={"last": "ort", "*": "cpu"})
    answer = profiled(plan, measure=True).what_if(plan, {"MatMul": 2, "Tanh": 2})
    assert sorted(answer.basis.values()) == ["measured", "measured", "profiled share"]
    assert answer.basis["last"] == "profiled share"
    assert "time of 2 nodes: measured" in str(answer)


def test_nodes_that_could_have_been_timed_are_refused_with_how_to_time_them() -> None:
    plan = pl.plan(network(), ["cpu", "ort"], pin={"last": "ort", "*": "cpu"})
    profile = profiled(plan, measure=False)
    with pytest.raises(pl.SessionError, match="does not say what nodes take") as raised:
        profile.what_if(plan, {"bend": 2})
    assert "measure=True" in (raised.value.fix or "")
    assert profile.what_if(plan, {"last": 2}).basis == {"last": "profiled share"}
    assert profiled(plan, measure=True).what_if(plan, {"bend": 2}).basis == {"bend": "measured"}


@pytest.mark.parametrize("device", ["ort", "cpu", "compiled"])
def test_names_that_reports_give_steps_and_pins_give_nodes_are_understood(device: str) -> None:
    b = pl.GraphBuilder("whole")
    prepared = b.op("Relu", b.input("x", "float32", (64, 64)), name="prepare")
    b.output("y", b.include(network(), {"x": prepared}, prefix="net//")["y"])
    plan = pl.plan(b.build(), ["cpu:1", device], pin={"prepare": "cpu:1", "net/*": device})
    profile = profiled(plan, measure=True)
    (step,) = {row["step"] for row in profile.steps() if row["device"] == device}
    assert step in profile.table()
    expected = pl.simulate(plan, faster={"MatMul": 2, "Tanh": 2}).makespan_s
    for name in (step, "net/*"):
        assert pl.simulate(plan, faster={name: 2}).makespan_s == pytest.approx(expected)
        answer = profile.what_if(plan, {name: 2})
        assert {*answer.basis} == {node.name for node in plan.graph.nodes} - {"prepare"}
        assert str(answer).startswith(f"if {name} were 2 times as fast")
    with pytest.raises(pl.PlanError, match=f"its steps: prepare.*{re.escape(step)}; its op"):
        profile.what_if(plan, {"nets": 2})


def test_an_empty_profile_answers_nothing() -> None:
    plan = pl.plan(network(), ["ort"])
    with pytest.raises(pl.SessionError, match="does not say what nodes take"):
        Profile((), ()).what_if(plan, {"MatMul": 2})
