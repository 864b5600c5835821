"""A data frame of Daft over a Parquet file: ``daft_frame.py function|model SOURCE SINK``."""

import sys
from typing import Any

import daft
import numpy as np
from daft import DataType

WEIGHTS = np.random.default_rng(0).standard_normal((64, 64)).astype("float32") / 8
FOUND = DataType.struct({"words": DataType.int64(), "longest": DataType.int64()})


@daft.func(return_dtype=FOUND)  # type: ignore[untyped-decorator]
def measure(text: str) -> dict[str, int]:
    words = text.split()
    return {"words": len(words), "longest": max(map(len, words))}


@daft.func.batch(return_dtype=DataType.list(DataType.float32()), batch_size=256)  # type: ignore[untyped-decorator]
def compute(x: Any) -> Any:
    rows = np.array(x.to_pylist(), "float32")
    return list(np.maximum(rows @ WEIGHTS, 0) @ WEIGHTS[:, :10])


if __name__ == "__main__":
    kind, source, sink = sys.argv[1:]
    frame = daft.read_parquet(source)
    found = measure(frame["text"]) if kind == "function" else compute(frame["x"])
    frame.select(frame["id"], found.alias("y")).write_parquet(sink)
