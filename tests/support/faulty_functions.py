"""A function for workers that die again and again: they import no more than it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl

Array = np.ndarray[Any, Any]
ROWS = pl.TensorSpec("float32", ("rows", 2))
BAD = 7.0


@pl.operator(ROWS, inputs=[ROWS], name="faulty_functions.worked")
def worked(rows: Array) -> Array:
    """Refuse some rows."""
    if (rows[:, 0] == BAD).any():
        raise ValueError("bad")
    return rows * 2
