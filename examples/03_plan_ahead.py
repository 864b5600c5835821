"""Decide before anything runs: two branches, a GPU that is not here, many items in flight.

python examples/03_plan_ahead.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import plait as pl

GPU = {"flops_per_s": 2e13, "bytes_per_s": 1e12, "copy_bytes_per_s": 2e10, "submit_s": 1e-5}
"""As a data sheet says it; left out figures have defaults. A JSON file of this does as well."""


def two_branches() -> pl.Graph:
    """Build a network whose input goes through a wide and a narrow branch."""
    rng = np.random.default_rng(0)
    b = pl.GraphBuilder("two branches")
    x = b.input("x", "float32", (64, 256))
    sides = {}
    for name, width in (("wide", 1536), ("narrow", 1280)):
        side = x
        for index, (rows, columns) in enumerate([(256, width), (width, width), (width, 256)]):
            weights = rng.standard_normal((rows, columns), np.float32) / np.float32(rows**0.5)
            side = side.mat_mul(weights, name=f"{name}{index}").relu()
        sides[name] = side
    b.output("y", sides["wide"].add(sides["narrow"], name="join"))
    return b.build()


def main() -> None:
    graph = two_branches()
    here = pl.plan(graph, ["cpu", "worker:0"], max_in_flight=4)
    print(here.report(), "\n")

    print("A GPU that is not here would change this:")
    gpu = pl.modelled_device("gpu", pl.DeviceModel.from_dict(GPU))
    print(pl.diff(here, pl.plan(graph, [gpu, "cpu"], max_in_flight=4)), "\n")

    # As many items at a time, as much memory: but far from that many times as much.
    print("in flight     memory   predicted")
    for count in (1, 2, 4, 8):
        found = pl.simulate(here, items=50, max_in_flight=count)
        nbytes = sum(use.planned_nbytes for use in found.memory.values())
        print(f"{count:9} {nbytes / 1e6:7.2f} MB {found.items_per_s:3.0f} items/s")

    with tempfile.TemporaryDirectory() as folder:
        here.save(Path(folder) / "branches.plan")
        loaded = pl.load_plan(Path(folder) / "branches.plan")  # decides nothing anew
        y = pl.run(loaded, {"x": np.ones((64, 256), np.float32)})["y"]
    print(f"\nsaved, loaded and run: y is {y.dtype}{list(y.shape)}, its mean {y.mean():.3f}")


if __name__ == "__main__":
    main()
