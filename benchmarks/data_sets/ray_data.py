"""A data set of Ray over a Parquet file: ``ray_data.py function|model SOURCE SINK``."""

import sys
from typing import Any

import numpy as np
import ray
from ray.data.checkpoint import CheckpointConfig

WEIGHTS = np.random.default_rng(0).standard_normal((64, 64)).astype("float32") / 8


def measure(row: dict[str, Any]) -> dict[str, Any]:
    words = row["text"].split()
    return {"id": row["id"], "words": len(words), "longest": max(map(len, words))}


def compute(rows: dict[str, Any]) -> dict[str, Any]:
    x = np.stack(rows["x"])
    return {"id": rows["id"], "y": np.maximum(x @ WEIGHTS, 0) @ WEIGHTS[:, :10]}


if __name__ == "__main__":
    kind, source, sink, *checkpoint = sys.argv[1:]
    ray.init(num_cpus=2, include_dashboard=False, logging_level=40)
    if checkpoint:
        ray.data.DataContext.get_current().checkpoint_config = CheckpointConfig(
            id_column="id", checkpoint_path=checkpoint[0], delete_checkpoint_on_success=False
        )
    rows = ray.data.read_parquet(source)
    found = rows.map(measure) if kind == "function" else rows.map_batches(compute, batch_size=256)
    found.write_parquet(sink)
