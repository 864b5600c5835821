"""Text in images, as in ocr_pipeline.py, with its networks on two hosts of a Ray cluster.

One host finds where text is, the other reads what it says; this process loads images, cuts lines
out of them and puts texts together. Several images are under way, so both hosts work at a time. On
a cluster of your own, give its nodes the labels: ``ray start --labels plait-host=find ...``.

Needs ``pip install '.[onnx,ray]' rapidocr-onnxruntime==1.4.4`` on all nodes.

    python examples/ocr_two_hosts.py [IMAGE ...] [--ray HOST:PORT]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import ocr_pipeline
import plait as pl
import trio


def cluster_at(address: str) -> pl.ray.Cluster:
    """Return the cluster at an address, or one of two nodes that is started here."""
    here = [pl.ray.RayNode({"plait-host": name}) for name in ("find", "read")]
    return pl.ray.cluster(address, nodes=here if address == "local" else [])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Read the text in images, on two hosts.")
    parser.add_argument("images", type=Path, nargs="*", metavar="IMAGE")
    parser.add_argument("--ray", default="local", metavar="ADDRESS", help="of the cluster")
    parser.add_argument("--find", default="ray:find/cpu", help="device that finds where text is")
    parser.add_argument("--read", default="ray:read/cpu", help="device that reads what it says")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        try:
            with cluster_at(options.ray):
                plans = ocr_pipeline.make_plans([options.find], [options.read])
                paths = options.images or ocr_pipeline.draw(Path(folder))
                start_s = time.perf_counter()
                trio.run(ocr_pipeline.print_texts, plans, paths)
                seconds = time.perf_counter() - start_s
        except (pl.PlaitError, ModuleNotFoundError) as error:
            parser.exit(2, f"{error}\n")
    print(f"{len(paths)} images in {seconds:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
