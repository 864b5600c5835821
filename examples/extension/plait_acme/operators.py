"""Two operators: one with kernels, and one that owns something while a plan is open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
from plait.operators import Call, Checks, define, kernel


@define("acme.Center", inputs="x")
def center(call: Call) -> Sequence[pl.TensorSpec]:
    """Infer the shape of rows minus their mean: that of the input."""
    Checks(call, "acme.Center").input("x").rank(1, 2).dtype("float32", "float64")
    return (call.spec(0),)


@kernel("acme.Center")
def center_rows(
    xp: Any, inputs: Sequence[Any], outputs: Sequence[Any], attributes: Mapping[str, Any]
) -> None:
    """Subtract the mean, for arrays of any module."""
    xp.subtract(inputs[0], inputs[0].mean(axis=-1, keepdims=True), out=outputs[0])


@pl.operator(name="acme.Fetch")
class Fetch:
    """Rows of a table in a file, a table that may be larger than memory."""

    def prepare(self, call: Call, check: Checks) -> pl.TensorSpec:
        """Check the node when a graph is built, and return the spec of its result."""
        check.input("rows").rank(1).dtype("int64")
        check.attribute("columns").at_least(1)
        self._path, self._columns = Path(call.attributes["path"]), call.attributes["columns"]
        (n,) = call.spec(0).shape or ("n",)
        return pl.TensorSpec("float32", (n, self._columns))

    def open(self, inputs: Sequence[Any]) -> None:
        """Map the file, when the plan is opened: once for all items."""
        self._table = np.load(self._path, mmap_mode="r")
        if self._table.shape[1:] != (self._columns,):
            raise ValueError(f"{self._path} holds rows of shape {self._table.shape[1:]}")

    def run(self, rows: Any, *, path: str, columns: int) -> Any:
        """Return the rows, for each item."""
        return np.asarray(self._table[rows], np.float32)

    def close(self) -> None:
        """Release the file when the plan is closed."""
        del self._table
