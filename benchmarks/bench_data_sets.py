"""How fast are jobs beside Ray Data and Daft, from a Parquet file to Parquet files?

The same 200,000 rows by a small Python function for each row, and by a small network in batches of
256. Each side is a script in `data_sets/`, run in a process of its own, with the start of the
process and, for Ray, of its cluster: ``seconds`` is the whole time. Sides take turns. Ray runs with
its checkpoint, by the identity of rows, as a job of plait always commits; Daft has none. The lines
are those of a script that are neither empty nor comments. Rows are compared once.

All sides run on the Python that runs this file, which needs ``ray[data]`` and ``daft``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from measure import save

SCRIPTS = Path(__file__).parent / "data_sets"
SIDES = {
    "plait": "plait_job.py",
    "Ray Data with its checkpoint": "ray_data.py",
    "Daft": "daft_frame.py",
}
KINDS = ("function", "model")
LOOK_S, SUSPENDED_S = 0.05, 3.0
"""A process that is not woken for so long was stopped, as were the others that it watches."""


def write_rows(file: Path, count: int) -> None:
    chance = np.random.default_rng(1)
    texts = [" ".join("abcdefgh"[: n % 8 + 1] for n in range(k % 30 + 1)) for k in range(count)]
    x = pa.FixedSizeListArray.from_arrays(chance.random(count * 64, "float32"), 64)
    rows = {"id": np.arange(count), "text": texts, "x": x.cast(pa.list_(pa.float32()))}
    pq.write_table(pa.table(rows), file, row_group_size=10_000)


def run_side(side: str, kind: str, source: Path, sink: Path) -> float:
    """Return the seconds that a script takes in a new process; repeat it if all was suspended."""
    command = [sys.executable, str(SCRIPTS / SIDES[side]), kind, str(source), str(sink)]
    if "checkpoint" in side:
        command.append(str(sink.with_suffix(".checkpoint")))
    while True:
        shutil.rmtree(sink, ignore_errors=True)
        shutil.rmtree(sink.with_suffix(".checkpoint"), ignore_errors=True)
        begun = last = time.perf_counter()
        is_suspended = False
        with tempfile.TemporaryFile() as log:
            ran = subprocess.Popen(command, stdout=log, stderr=log)
            while ran.poll() is None:
                time.sleep(LOOK_S)
                now = time.perf_counter()
                is_suspended |= now - last > SUSPENDED_S
                last = now
            if ran.returncode:
                log.seek(0)
                raise RuntimeError(log.read()[-2000:].decode())
        if not is_suspended:
            return last - begun


def read_results(side: str, kind: str, sink: Path) -> Any:
    """Return the rows of a side, sorted, in one form."""
    table = ds.dataset(sink / "parts" if side == "plait" else sink).to_table().sort_by("id")
    if kind == "model":
        return np.array(table["y"].to_pylist(), "float32").reshape(len(table), 10)
    if side == "Daft":
        return [(one["words"], one["longest"]) for one in table["y"].to_pylist()]
    return list(zip(table["words"].to_pylist(), table["longest"].to_pylist(), strict=True))


def run_round(turn: int, source: Path, folder: Path, spent: Any) -> None:
    """Run all sides once, and check that they find the same."""
    for kind in KINDS:
        found = {}
        for side in list(SIDES)[:: -1 if turn % 2 else 1]:
            spent[kind][side].append(run_side(side, kind, source, folder / side))
            print(kind, side, round(spent[kind][side][-1], 1), file=sys.stderr)
            if turn == 0:
                found[side] = read_results(side, kind, folder / side)
        for one in found.values():
            np.testing.assert_allclose(one, found["plait"], 1e-4, 1e-4)


def summarize(count: int, spent: dict[str, list[float]]) -> dict[str, Any]:
    return {
        side: {
            "items per second": round(count / statistics.median(seconds)),
            "seconds": [round(one, 2) for one in seconds],
            "times plait's": round(
                statistics.median(a / b for a, b in zip(seconds, spent["plait"], strict=True)), 3
            ),
        }
        for side, seconds in spent.items()
    }


def count_lines(script: str) -> int:
    lines = (line.strip() for line in (SCRIPTS / script).read_text().splitlines())
    return sum(bool(line) and not line.startswith(("#", '"""')) for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    spent = {kind: {side: list[float]() for side in SIDES} for kind in KINDS}
    figures: dict[str, Any] = {
        "rows": arguments.rows,
        "compared": {one: version(one) for one in ("ray", "daft", "pyarrow")},
        "lines": {side: count_lines(script) for side, script in SIDES.items()},
        "load": [],
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder / "rows.parquet", arguments.rows)
        for turn in range(arguments.rounds):
            run_round(turn, folder / "rows.parquet", folder, spent)
            figures["load"].append(round(os.getloadavg()[0], 1))
            for kind in KINDS:
                figures[kind] = summarize(arguments.rows, spent[kind])
            save("data_sets", figures)


if __name__ == "__main__":
    main()
