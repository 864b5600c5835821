"""Models of scikit-learn, converted by skl2onnx, between Python functions in one graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
import pytest
from plait.graph.tensor import Array

onnxruntime = pytest.importorskip("onnxruntime")
skl2onnx = pytest.importorskip("skl2onnx")
datasets, decomposition, ensemble, feature_extraction, linear_model, pipeline = (
    pytest.importorskip(f"sklearn.{name}")
    for name in (
        *("datasets", "decomposition", "ensemble", "feature_extraction.text"),
        *("linear_model", "pipeline"),
    )
)
preprocessing, svm = map(pytest.importorskip, ("sklearn.preprocessing", "sklearn.svm"))

CLASSIFIERS = [
    ensemble.RandomForestClassifier(5, random_state=0),
    pipeline.make_pipeline(
        preprocessing.StandardScaler(), decomposition.PCA(2), linear_model.LogisticRegression()
    ),
]
REGRESSORS = [ensemble.RandomForestRegressor(5, random_state=0), svm.SVR()]


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


@pytest.mark.parametrize(
    ("estimator", "data"),
    [
        *((one, datasets.load_iris) for one in CLASSIFIERS),
        *((one, datasets.load_diabetes) for one in REGRESSORS),
    ],
    ids=lambda value: type(value).__name__,
)
def test_they_compute_what_onnxruntime_does_of_them(estimator: Any, data: Any) -> None:
    table, target = data(return_X_y=True)
    table = table.astype(np.float32)
    estimator.fit(table, target)
    options = {"zipmap": False} if data is datasets.load_iris else None
    model = skl2onnx.to_onnx(estimator, table[:1], options=options)
    alone = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    graph = around(model)
    wanted = dict(zip(graph.outputs, alone.run(None, {"X": table[::-1]}), strict=True))
    wanted[graph.outputs[-1]] = wanted[graph.outputs[-1]][::-1]
    plan = pl.plan(graph, ["cpu", "ort"])
    with pl.BlockingSession(plan) as session:
        found = session.run({"table": table})
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5)
    assert "ai.onnx.ml." in plan.report()


@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=lambda one: type(one).__name__)
def test_labels_are_text_where_the_classes_are(estimator: Any) -> None:
    iris = datasets.load_iris()
    table, names = iris.data.astype(np.float32), iris.target_names[iris.target]
    model = skl2onnx.to_onnx(estimator.fit(table, names), table[:1])  # with ZipMap
    graph = around(model)
    found = pl.run(graph, {"table": table}, devices=["cpu", "ort"])
    assert found["output_label"].tolist() == estimator.predict(table[::-1]).tolist()
    wanted = estimator.predict_proba(table)
    np.testing.assert_allclose(found["output_probability"], wanted, rtol=1e-4, atol=1e-5)


def test_columns_of_text_are_encoded() -> None:
    table = np.array(
        [["red", "big"], ["blue", "small"], ["red", "small"], ["green", "big"]], object
    )
    estimator = pipeline.make_pipeline(
        preprocessing.OneHotEncoder(), linear_model.LogisticRegression()
    )
    estimator.fit(table, [0, 1, 1, 0])
    types = [("X", skl2onnx.common.data_types.StringTensorType([None, 2]))]
    graph = pl.load(skl2onnx.to_onnx(estimator, initial_types=types))
    found = pl.run(graph, {"X": table.astype(str)}, devices=["ort"])
    assert found["output_label"].tolist() == [0, 1, 1, 0]


def test_texts_are_counted_and_told_apart() -> None:
    texts = ["red and blue", "big", "blue is red", "big or small"]
    estimator = pipeline.make_pipeline(
        feature_extraction.TfidfVectorizer(lowercase=False),  # which would take a locale
        linear_model.LogisticRegression(),
    )
    estimator.fit(texts, ["colour", "size", "colour", "size"])
    types = [("X", skl2onnx.common.data_types.StringTensorType([None, 1]))]
    graph = pl.load(skl2onnx.to_onnx(estimator, initial_types=types))
    plan = pl.plan(graph, ["cpu", "ort"], max_in_flight=2)
    with pl.BlockingSession(plan) as session:
        items = [texts, texts[:1], ["small and blue and red"]]
        found = list(session.stream({"X": [[text] for text in item]} for item in items))
        for item, result in zip(items, found, strict=True):
            wanted = estimator.predict_proba(item)
            assert result["output_label"].tolist() == estimator.predict(item).tolist()
            np.testing.assert_allclose(result["output_probability"], wanted, rtol=1e-4, atol=1e-5)
