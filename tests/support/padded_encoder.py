"""A network over tokens of several lengths."""

from __future__ import annotations

import numpy as np
import plait as pl

TABLE = np.random.default_rng(0).standard_normal((50, 8)).astype("float32")


def make_encoder(rows: int | str = "rows") -> pl.Graph:
    """Return a mean of embeddings where the mask is one, and the embeddings themselves."""
    b = pl.GraphBuilder("encoder")
    tokens = b.input("tokens", "int64", (rows, "tokens"))
    mask = b.input("mask", "float32", (rows, "tokens"))
    found = b.op("Gather", b.constant(TABLE), tokens)
    weights = b.op("Unsqueeze", mask, np.array([2]))
    b.output("vector", (found * weights).sum(axis=1) / weights.sum(axis=1))
    b.output("words", found)
    return b.build()
