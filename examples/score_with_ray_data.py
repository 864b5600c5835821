"""Types of files in a folder or bucket: Ray Data reads them on a cluster, plait names their types.

Ray Data reads, cuts into batches, keeps as many in memory as there is room for, and starts actors;
each of them opens one session of plait, which stays open for all batches that come to it. For
datasets that are there; for results while they are wanted, stream over replicas (docs/ray.md).
Needs ``pip install '.[onnx]' magika==1.0.3 'ray[data]'``.

    python examples/score_with_ray_data.py FOLDER [--actors 2]
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import magika_pipeline
import numpy as np
import plait as pl
import ray
import serve_fastapi

Batch = dict[str, Any]


class Identify:
    """Names the types of a batch of files; an actor has one."""

    def __init__(self) -> None:
        self.session = pl.BlockingSession(serve_fastapi.plan_network())

    def __call__(self, batch: Batch) -> Batch:
        """Return paths and labels, for paths and contents."""
        cut = [magika_pipeline.content_features(content) for content in batch["bytes"]]
        tokens = np.concatenate([tokens for tokens, _ in cut])
        scores = self.session.run({"tokens": tokens})["scores"]
        chosen = [
            magika_pipeline.choose_label(row[np.newaxis], verdict)[0][0]
            for row, (_, verdict) in zip(scores, cut, strict=True)
        ]
        labels = np.array(magika_pipeline.labels())
        return {"path": batch["path"], "label": labels[chosen]}


def count_labels(folder: str, actors: int = 2) -> Counter[str]:
    """Return how many files of each type there are below a folder."""
    files = ray.data.read_binary_files(folder, include_paths=True)
    # Half a core each in Ray's books: actors that took them all would leave none to read files.
    pool = ray.data.ActorPoolStrategy(size=actors)
    found = files.map_batches(Identify, batch_size=16, compute=pool, num_cpus=0.5)
    return Counter(row["label"] for row in found.iter_rows())


def main() -> None:
    """Ship this folder's modules to the cluster, count, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--actors", type=int, default=2)
    arguments = parser.parse_args()
    ray.init(runtime_env={"working_dir": str(Path(__file__).parent)})
    for label, count in count_labels(arguments.folder, arguments.actors).most_common():
        print(f"{count:6}  {label}")


if __name__ == "__main__":
    main()
