"""Models of scikit-learn, converted by skl2onnx, between Python functions in one graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import plait as pl
import pytest
from plait.graph.values.tensor import Array

SciKit: TypeAlias = SimpleNamespace
Make: TypeAlias = Callable[[SciKit], Any]

CLASSIFIERS: dict[str, Make] = {
    "forest": lambda sk: sk.ensemble.RandomForestClassifier(5, random_state=0),
    "pipeline": lambda sk: sk.pipeline.make_pipeline(
        sk.preprocessing.StandardScaler(),
        sk.decomposition.PCA(2),
        sk.linear_model.LogisticRegression(),
    ),
}
BATCHED: dict[str, Make] = {
    **CLASSIFIERS,
    "network": lambda sk: sk.neural_network.MLPClassifier((8,), max_iter=20, random_state=0),
    "calibrated": lambda sk: sk.calibration.CalibratedClassifierCV(sk.svm.LinearSVC(), cv=3),
    "line": lambda sk: sk.linear_model.LinearRegression(),
}
REGRESSORS: dict[str, Make] = {
    "trees": lambda sk: sk.ensemble.RandomForestRegressor(5, random_state=0),
    "svr": lambda sk: sk.svm.SVR(),
}


@pytest.fixture(scope="module")
def sk() -> SciKit:
    """The packages: importing them takes as long as collecting a tenth of all tests."""
    names = (
        *("calibration", "datasets", "decomposition", "ensemble", "linear_model", "neural_network"),
        *("pipeline", "preprocessing"),
    )
    return SimpleNamespace(
        onnxruntime=pytest.importorskip("onnxruntime"),
        skl2onnx=pytest.importorskip("skl2onnx"),
        text=pytest.importorskip("sklearn.feature_extraction.text"),
        svm=pytest.importorskip("sklearn.svm"),
        **{name: pytest.importorskip(f"sklearn.{name}") for name in names},
    )


@pl.operator(lambda table: table)
def reverse(table: Array) -> Array:
    return np.ascontiguousarray(table[::-1])


def around(model: Any) -> pl.Graph:
    """Return a graph of a model, with a function before it and one behind its last output."""
    network = pl.load(model)
    b = pl.GraphBuilder("around")
    table = b.input("table", "float32", network.tensors["X"].shape or ())
    found = b.include(network, {"X": b.call(reverse, table)})
    *others, last = network.outputs
    for name in others:
        b.output(name, found[name])
    b.output(last, b.call(reverse, found[last]))
    return b.build()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CLASSIFIERS, *REGRESSORS])
def test_they_compute_what_onnxruntime_does_of_them(sk: SciKit, name: str) -> None:
    estimator = (CLASSIFIERS | REGRESSORS)[name](sk)
    data = sk.datasets.load_iris if name in CLASSIFIERS else sk.datasets.load_diabetes
    table, target = data(return_X_y=True)
    table = table.astype(np.float32)
    estimator.fit(table, target)
    options = {"zipmap": False} if name in CLASSIFIERS else None
    model = sk.skl2onnx.to_onnx(estimator, table[:1], options=options)
    alone = sk.onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    graph = around(model)
    wanted = dict(zip(graph.outputs, alone.run(None, {"X": table[::-1]}), strict=True))
    wanted[graph.outputs[-1]] = wanted[graph.outputs[-1]][::-1]
    plan = pl.plan(graph, ["cpu", "ort"])
    with pl.BlockingSession(plan) as session:
        found = session.run({"table": table})
    for output, value in wanted.items():
        np.testing.assert_allclose(found[output], value, rtol=1e-5, atol=1e-5)
    assert "ai.onnx.ml." in plan.report()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", BATCHED)
def test_rows_of_several_items_are_one_batch(
    sk: SciKit, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAIT_DEVICES", "ort,cpu")
    table, target = sk.datasets.load_iris(return_X_y=True)
    table = table.astype(np.float32)
    estimator = BATCHED[name](sk).fit(table, target)
    predict = getattr(estimator, "predict_proba", estimator.predict)
    options = None if name == "line" else {"zipmap": False}
    model = sk.skl2onnx.to_onnx(estimator, table[:1], options=options)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())

    def take_last(*found: Array) -> list[float]:
        return [float(one) for one in found[-1].flat]

    step = pl.step(tmp_path / "model.onnx", batch=8)
    with pl.pipeline(lambda row: row[None], step, take_last, example=table[0]) as pipe:
        found = pipe.map(table[:40])
    wanted = predict(table[:40]).reshape(40, -1)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("batch", [None, 4])
def test_rows_of_an_item_are_classified_and_none_too(
    sk: SciKit, monkeypatch: pytest.MonkeyPatch, batch: int | None
) -> None:
    """Its ArrayFeatureExtractor refuses to run on no rows."""
    monkeypatch.setenv("PLAIT_DEVICES", "ort,cpu")
    table, target = sk.datasets.load_iris(return_X_y=True)
    table = table.astype(np.float32)
    estimator = BATCHED["network"](sk).fit(table, target)
    model = pl.load(sk.skl2onnx.to_onnx(estimator, table[:1], options={"zipmap": False}))
    with pl.pipeline(pl.each(model, batch=batch), example=list(table[:6])) as pipe:
        places = [slice(6), slice(0), slice(70, 71)]
        found = pipe.map([list(table[place]) for place in places])
    wanted = estimator.predict_proba(table)
    for place, (labels, scores) in zip(places, found, strict=True):
        assert labels.tolist() == wanted[place].argmax(axis=1).tolist()
        np.testing.assert_allclose(scores, wanted[place], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_labels_are_text_where_the_classes_are(sk: SciKit, name: str) -> None:
    estimator, iris = CLASSIFIERS[name](sk), sk.datasets.load_iris()
    table, names = iris.data.astype(np.float32), iris.target_names[iris.target]
    model = sk.skl2onnx.to_onnx(estimator.fit(table, names), table[:1])  # with ZipMap
    graph = around(model)
    found = pl.run(graph, {"table": table}, devices=["cpu", "ort"])
    assert found["output_label"].tolist() == estimator.predict(table[::-1]).tolist()
    wanted = estimator.predict_proba(table)
    np.testing.assert_allclose(found["output_probability"], wanted, rtol=1e-4, atol=1e-5)


def test_columns_of_text_are_encoded(sk: SciKit) -> None:
    table = np.array(
        [["red", "big"], ["blue", "small"], ["red", "small"], ["green", "big"]], object
    )
    estimator = sk.pipeline.make_pipeline(
        sk.preprocessing.OneHotEncoder(), sk.linear_model.LogisticRegression()
    )
    estimator.fit(table, [0, 1, 1, 0])
    types = [("X", sk.skl2onnx.common.data_types.StringTensorType([None, 2]))]
    graph = pl.load(sk.skl2onnx.to_onnx(estimator, initial_types=types))
    found = pl.run(graph, {"X": table.astype(str)}, devices=["ort"])
    assert found["output_label"].tolist() == [0, 1, 1, 0]


def test_texts_are_counted_and_told_apart(sk: SciKit) -> None:
    texts = ["red and blue", "big", "blue is red", "big or small"]
    estimator = sk.pipeline.make_pipeline(
        sk.text.TfidfVectorizer(lowercase=False),  # which would take a locale
        sk.linear_model.LogisticRegression(),
    )
    estimator.fit(texts, ["colour", "size", "colour", "size"])
    types = [("X", sk.skl2onnx.common.data_types.StringTensorType([None, 1]))]
    graph = pl.load(sk.skl2onnx.to_onnx(estimator, initial_types=types))
    plan = pl.plan(graph, ["cpu", "ort"], max_in_flight=2)
    with pl.BlockingSession(plan) as session:
        items = [texts, texts[:1], ["small and blue and red"]]
        found = list(session.stream({"X": [[text] for text in item]} for item in items))
        for item, result in zip(items, found, strict=True):
            wanted = estimator.predict_proba(item)
            assert result["output_label"].tolist() == estimator.predict(item).tolist()
            np.testing.assert_allclose(result["output_probability"], wanted, rtol=1e-4, atol=1e-5)
