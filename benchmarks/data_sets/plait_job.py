"""A job of plait over a Parquet file: ``plait_job.py function|model SOURCE SINK``."""

import sys
from typing import Any

import numpy as np
import plait as pl

WEIGHTS = np.random.default_rng(0).standard_normal((64, 64)).astype("float32") / 8


def measure(row: dict[str, Any]) -> dict[str, Any]:
    words = row["text"].split()
    return {"id": row["id"], "words": len(words), "longest": max(map(len, words))}


if __name__ == "__main__":
    kind, source, sink = sys.argv[1:]
    work: Any = pl.pipeline(measure, example={"id": 0, "text": "two words"})
    if kind == "model":
        b = pl.GraphBuilder("network")
        x = b.input("x", "float32", ("rows", 64))
        b.output("y", (x @ WEIGHTS).relu() @ WEIGHTS[:, :10])
        work = pl.plan(b.build(), bounds={"rows": 256}, max_in_flight=2)
    options = {"batch": 256, "max_in_flight": 512, "carry": ["id"]} if kind == "model" else {}
    print(pl.Job(work, source, "parquet", sink, **options).run())  # type: ignore[arg-type]
