"""Does a session grow while a hundred thousand rows go through it, and what does a row cost?

A generator yields 100 rows of 4 KB for each item; `each` takes the largest number of every row, in
batches of up to 16 across the items in flight. The resident memory of the process is read when a
tenth of the rows is through, and at the end.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import trio
from measure import save

ROWS, WIDTH, BATCH, IN_FLIGHT = 100, 1024, 16, 4
FIRST = pl.TensorSpec("int64", ())
CHUNKS = pl.TensorSpec("float32", ("chunks", WIDTH))


@pl.operator(CHUNKS, inputs=[FIRST])
def chunks(first: Any) -> Iterator[Any]:
    """Yield the rows of an item, each full of its number."""
    for number in range(ROWS):
        yield np.full(WIDTH, first + number, np.float32)


def planned() -> pl.Plan:
    """Plan what takes the largest number of each row."""
    body = pl.GraphBuilder("body")
    x = body.input("x", "float32", ("rows", WIDTH))
    body.output("y", body.op("ReduceMax", x, np.array([1]), keepdims=0))
    b = pl.GraphBuilder("fan_out")
    made = b.call(chunks, b.input("first", "int64", ()), name="cut")
    b.output("y", b.each(made, body.build(), name="rows", batch=BATCH))
    return pl.plan(b.build(), bounds={"chunks": ROWS}, max_in_flight=IN_FLIGHT)


def resident_nbytes() -> int:
    """Return what the process has of the machine's memory, on Linux."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


async def fan_out(rows: int) -> dict[str, Any]:
    """Return what so many rows take, and by how much the process grew meanwhile."""
    items = rows // ROWS
    resident: dict[int, int] = {}
    async with pl.Session(planned()) as session:
        start = time.process_time()
        async with session.stream({"first": np.int64(n)} for n in range(items)) as results:
            async for item in results:
                assert item["y"].tolist() == [*range(item.index, item.index + ROWS)]
                if item.index + 1 in (items // 10, items):
                    gc.collect()
                    resident[item.index] = resident_nbytes()
        spent_s = time.process_time() - start
        batches = session.profile().row_batches["rows"]
    early, late = resident.values()
    return {
        "rows": batches.rows,
        "rows in a batch": batches.rows / batches.batches,
        "resident MB, a tenth through": early / 1e6,
        "grown by MB from then on": (late - early) / 1e6,
        "MB of rows meanwhile": 0.9 * rows * WIDTH * 4 / 1e6,
        "us of processor time per row": spent_s / rows * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    save("fan_out", trio.run(fan_out, parser.parse_args().rows))


if __name__ == "__main__":
    main()
