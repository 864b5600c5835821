"""Masks of attention that have one row for all queries are repeated where the runtime does not."""

from __future__ import annotations

import numpy as np
import plait as pl
import pytest

pytest.importorskip("onnxruntime")
from plait.devices.ort import accepted_forms
from plait.devices.ort.runtime import make_options
from plait.devices.ort.session import Model, Session
from releases import newer_ort

SAMPLES, HEADS, QUERIES, KEYS, WIDTH = 2, 3, 4, 5, 6


@pytest.mark.parametrize("dtype", ["float32", "bool"])
@pytest.mark.parametrize(
    "shape",
    [
        *((KEYS,), (1, KEYS), (QUERIES, KEYS), (HEADS, 1, KEYS)),
        *((SAMPLES, 1, 1, KEYS), (1, HEADS, 1, KEYS), (SAMPLES, 1, QUERIES, KEYS)),
    ],
)
@newer_ort
def test_a_mask_of_any_form_hides_what_it_hides_on_the_cpu(
    shape: tuple[int, ...], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepted_forms, "can_repeat_rows", lambda: False)
    b = pl.GraphBuilder("masked")
    query = b.input("query", "float32", (SAMPLES, HEADS, QUERIES, WIDTH))
    keys = b.input("keys", "float32", (SAMPLES, HEADS, KEYS, WIDTH))
    mask = b.input("mask", dtype, shape)
    b.output("y", b.op("Attention", query, keys, keys, mask))
    graph = b.build()
    loaded = Session(graph, lambda computed: Model(computed, make_options(), "ort"))
    whole = [node.op for node in loaded.computed.nodes]
    assert whole == (["Attention"] if QUERIES in shape else ["Expand", "Attention"])
    random = np.random.default_rng(0)
    fed = {name: random.standard_normal(graph.tensors[name].static_shape) for name in graph.inputs}
    fed = {name: value.astype(graph.tensors[name].dtype) for name, value in fed.items()}
    fed["mask"][..., 0] = 1  # each query sees a key
    found, wanted = (pl.run(graph, fed, devices=[one])["y"] for one in ("ort", "cpu"))
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-5)
