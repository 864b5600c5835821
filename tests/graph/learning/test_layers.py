"""Layers: their variables follow from what comes in, and they compute what numpy does."""

from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
import pytest
from plait import learning


def outputs(b: pl.GraphBuilder, y: pl.Tensor, x: Any) -> dict[str, Any]:
    """Return what a layer makes of an array, and its variables."""
    b.output("y", y)
    with pl.BlockingSession(pl.plan(b.build(), ["cpu"])) as session:
        return {"y": session.run({"x": x}, "y"), **dict(session.variables)}


def random(*shape: int) -> Any:
    return np.random.default_rng(5).normal(size=shape).astype("float32")


def test_dense_multiplies_the_last_axis_and_adds_a_bias() -> None:
    b, x = pl.GraphBuilder("g"), random(2, 3, 8)
    y = learning.dense(b.input("x", "float32", ("batch", 3, 8)), 5, "layer", seed=1)
    found = outputs(b, y, x)
    assert (y.shape, found["layer/w"].shape) == (("batch", 3, 5), (8, 5))
    np.testing.assert_allclose(found["y"], x @ found["layer/w"], rtol=1e-5, atol=1e-6)
    assert not found["layer/b"].any()


@pytest.mark.parametrize(("stride", "length"), [(1, 7), (2, 4)])
def test_conv_keeps_the_length_but_for_the_stride(stride: int, length: int) -> None:
    b, x = pl.GraphBuilder("g"), random(2, 3, 7)
    y = learning.conv(b.input("x", "float32", ("batch", 3, 7)), 4, 3, "layer", 1, stride)
    found = outputs(b, y, x)
    assert found["layer/w"].shape == (4, 3, 3)
    # Of what SAME_UPPER adds, the smaller half lies in front.
    added = (length - 1) * stride + 3 - 7
    padded = np.pad(x, ((0, 0), (0, 0), (added // 2, added - added // 2)))
    windows = np.stack([padded[:, :, i * stride : i * stride + 3] for i in range(length)], 2)
    wanted = np.einsum("ncik,fck->nfi", windows, found["layer/w"])
    np.testing.assert_allclose(found["y"], wanted, rtol=1e-4, atol=1e-5)


def test_norm_has_mean_0_and_variance_1_along_the_last_axis() -> None:
    b, x = pl.GraphBuilder("g"), random(4, 16)
    found = outputs(b, learning.norm(b.input("x", "float32", ("batch", 16)), "layer"), x)
    np.testing.assert_allclose(found["y"].mean(-1), 0, atol=1e-6)
    np.testing.assert_allclose(found["y"].var(-1), 1, rtol=1e-3)
    assert found["layer/scale"].shape == found["layer/b"].shape == (16,)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_gathers_from_all_places_or_from_earlier_ones(causal: bool) -> None:
    b, x, heads = pl.GraphBuilder("g"), random(2, 5, 8), 2
    given = b.input("x", "float32", ("batch", 5, 8))
    found = outputs(b, learning.attention(given, heads, "layer", 1, causal), x)
    q, k, v = (
        part.reshape(2, 5, heads, 4).swapaxes(1, 2)
        for part in np.split(x @ found["layer/qkv/w"], 3, axis=-1)
    )
    scores = q @ k.swapaxes(2, 3) / 2
    if causal:
        scores = np.where(np.tri(5, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = (weights / weights.sum(-1, keepdims=True)) @ v
    wanted = mixed.swapaxes(1, 2).reshape(2, 5, 8) @ found["layer/out/w"]
    np.testing.assert_allclose(found["y"], wanted, rtol=1e-4, atol=1e-5)


def test_a_number_of_heads_that_does_not_divide_is_refused() -> None:
    b = pl.GraphBuilder("g")
    x = b.input("x", "float32", ("batch", 5, 8))
    with pytest.raises(pl.ShapeError, match="makes no 3 heads"):
        learning.attention(x, 3, "layer", 1)
    assert not b.nodes


def test_an_unknown_length_is_refused() -> None:
    b = pl.GraphBuilder("g")
    with pytest.raises(pl.ShapeError, match="along axis -1 is not known"):
        learning.dense(b.input("x", "float32", ("batch", "n")), 4, "layer", 1)


def test_a_network_of_all_layers_learns_to_tell_samples_apart() -> None:
    b, rng = pl.GraphBuilder("net"), np.random.default_rng(0)
    x, label = b.input("x", "float32", ("n", 6, 8)), b.input("label", "int64", ("n",))
    mixed = learning.norm(x + learning.attention(x, 2, "attention", rng, causal=True), "norm")
    seen = learning.conv(mixed[:, None], 4, 3, "conv", rng, stride=2).relu()
    scores = learning.dense(seen.flatten(axis=1), 3, "scores", rng)
    loss = learning.sparse_softmax_cross_entropy(b, scores, label)
    b.output("loss", loss)
    b.output("train", learning.minimize(b, loss, learning.Adam(1e-2)))
    data = {"x": random(32, 6, 8), "label": rng.integers(0, 3, 32)}
    with pl.BlockingSession(pl.plan(b.build(), ["cpu"])) as session:
        losses = [float(session.run(data, ["loss", "train"])[0]) for _ in range(40)]
    assert losses[-1] < 0.2 < 0.9 < losses[0]
