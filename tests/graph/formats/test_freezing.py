"""Trained graphs become graphs without variables, for other tools."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plait as pl
import pytest
from plait import learning


def trained() -> pl.Graph:
    """Return a classifier with its loss, a step of training and a count of steps."""
    b = pl.GraphBuilder("classifier")
    x, wanted = b.input("x", "float32", ("n", 2)), b.input("wanted", "float32", ("n", 3))
    w = b.variable("w", np.arange(6, dtype="float32").reshape(2, 3))
    count = b.variable("count", np.float32(0))
    logits = b.op("Add", b.op("MatMul", x, w), b.variable("bias", learning.zeros((3,))))
    loss = learning.softmax_cross_entropy(b, logits, wanted)
    b.output("logits", logits)
    b.output("loss", loss)
    b.output("w now", w)
    train = learning.minimize(b, loss, learning.Adam(0.1))
    b.output("step", b.group(train, b.assign(count, b.op("Add", count, 1.0))))
    return b.build()


FED = {"x": np.ones((4, 2), "float32"), "wanted": np.eye(4, 3, dtype="float32")}


def test_what_is_frozen_computes_what_the_session_does() -> None:
    graph = trained()
    with pl.BlockingSession(pl.plan(graph)) as session:
        session.run(FED, "step")
        logits = session.run(FED, "logits")
        frozen = pl.freeze(graph, session.variables, ["logits"])
    assert frozen.inputs == ("x",)
    assert [node.op for node in frozen.nodes] == ["MatMul", "Add"]
    assert np.array_equal(pl.run(frozen, {"x": FED["x"]})["logits"], logits)
    assert np.abs(logits - pl.run(graph, FED, fetches="logits")).max() > 0.01


def test_other_tools_read_it(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    values = {"w": np.ones((2, 3), "float32"), "bias": np.arange(1, 4, dtype="float32")}
    pl.save(pl.freeze(trained(), values, ["logits"]), tmp_path / "m.onnx")
    session = runtime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": FED["x"]})[0].tolist() == [[3, 4, 5]] * 4


def test_all_outputs_are_kept_to_which_no_assignment_leads() -> None:
    frozen = pl.freeze(trained(), {"bias": np.zeros(3, "float32")})
    assert frozen.outputs == ("logits", "loss", "w now")
    assert frozen.inputs == ("x", "wanted")
    assert pl.run(frozen, FED)["w now"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_what_others_call_weights_stays_as_it_is() -> None:
    graph = trained()
    pl.freeze(graph, {"bias": np.ones(3, "float32")})
    assert graph == trained()


@pytest.mark.parametrize(
    ("outputs", "complaint"),
    [
        (["step"], "an assignment leads to an output"),
        (["scores"], "there is no output 'scores'"),
        (["logits"], "what 'bias' begins with is computed"),
        ([], "no output is named"),
    ],
)
def test_what_cannot_be_frozen_is_named(outputs: list[str], complaint: str) -> None:
    with pytest.raises(pl.GraphError, match=complaint) as caught:
        pl.freeze(trained(), {}, outputs)
    assert "session.variables" in str(caught.value.fix) or "'logits', 'loss', 'w now'" in str(
        caught.value.fix
    )


def test_a_graph_that_only_assigns_cannot_be_frozen() -> None:
    b = pl.GraphBuilder("count")
    count = b.variable("count", np.float32(0))
    b.output("now", b.assign(count, b.op("Add", count, 1.0)))
    with pytest.raises(pl.GraphError, match="an assignment leads to every output"):
        pl.freeze(b.build(), {})


def test_onnx_says_how_variables_become_constants(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    with pytest.raises(pl.GraphError, match=r"'w': ONNX has no Variable: save plait\.freeze"):
        pl.save(trained(), tmp_path / "m.onnx")
