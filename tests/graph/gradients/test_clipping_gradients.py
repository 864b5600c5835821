"""Gradients scaled down together."""

from __future__ import annotations

import numpy as np
import plait as pl
import pytest
from plait.graph.learning.clipping import clip_by_global_norm


@pytest.mark.parametrize(("longest", "factor"), [(2.6, 0.2), (13, 1), (100, 1)])
def test_gradients_keep_their_proportions(longest: float, factor: float) -> None:
    b = pl.GraphBuilder("clipped")
    names = [b.input("a", "float32", (2,)), b.input("b", "float64", ())]
    for name, made in zip("ab", clip_by_global_norm(b, names, longest), strict=True):
        b.output(f"clipped/{name}", made)
    a, c = np.array([3, 4], "float32"), np.array(12.0)
    found = pl.run(pl.plan(b.build()), {"a": a, "b": c})
    np.testing.assert_allclose(found["clipped/a"], a * factor, rtol=1e-6)
    np.testing.assert_allclose(found["clipped/b"], c * factor, rtol=1e-6)


def test_gradients_of_zero_stay() -> None:
    b = pl.GraphBuilder("zeros")
    (made,) = clip_by_global_norm(b, [b.input("a", "float32", (3,))], 1)
    b.output("clipped", made)
    assert pl.run(pl.plan(b.build()), {"a": np.zeros(3, "float32")})["clipped"].tolist() == [0] * 3


def test_there_must_be_gradients_and_a_norm_above_zero() -> None:
    b = pl.GraphBuilder("nothing")
    with pytest.raises(pl.GraphError, match="0 gradients"):
        clip_by_global_norm(b, [], 1)
    with pytest.raises(pl.GraphError, match="the norm 0"):
        clip_by_global_norm(b, [b.input("a", "float32", ())], 0)
