"""Python functions that return as many rows as values say."""

from __future__ import annotations

import numpy as np
import plait as pl

BOXES = (pl.TensorSpec("float32", ("boxes", 4)), pl.TensorSpec("int64", ("boxes",)))


@pl.operator(BOXES, inputs=[pl.TensorSpec("float32", (8, 4))], name="test.find_boxes")
def find_boxes(x: np.ndarray, *, least: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows that begin with more than a number, twice as large, and which they are."""
    kept = np.flatnonzero(x[:, 0] > least)
    return x[kept] * 2, kept


@pl.operator(BOXES, inputs=[pl.TensorSpec("float32", (8, 4))], name="test.wrong_boxes")
def wrong_boxes(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows that are too short."""
    return x[:, :3], np.arange(8)
