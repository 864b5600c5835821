"""Runs jobs that are killed again and again, each time by a process of its own: run as a script.

Some of the processes are killed at a random time, others at a random line of the code that runs and
commits. The files of the last one must be those of a process that was not disturbed.
"""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import av
import numpy as np
import plait as pl
from plait.scheduler.jobs.commits import show_status

FRAME = 48, 64
ITEMS, COMMIT_ITEMS, PART_ITEMS = 240, 10, 40
BY_LINE, LINES = 2, 4000
"""The first lives end by line: all of them take fewer lines than a whole job, on any machine."""
_TRACEBACK = re.compile(rb'"traceback":.*|on device .cpu:[01]')
"""And the device that was free: a pipeline has several."""
STATEFUL = "stateful", "keyed"
FILES = ("blocks.py", "columns.py", "commits.py", "run.py", "shards.py", "sinks.py", "files.py")


def write_video(file: Path) -> None:
    """Write a film of a bright square that moves over noise, and of two for some time."""
    chance = np.random.default_rng(0)
    with av.open(file, "w") as container:
        stream = container.add_stream("mpeg4", 25)
        stream.height, stream.width, stream.pix_fmt = *FRAME, "yuv420p"
        for number in range(ITEMS):
            frame = chance.integers(0, 60, (*FRAME, 3), "uint8")
            frame[number % 40 : number % 40 + 8, number // 5 : number // 5 + 8] = 255
            if number % 30 < 10:
                frame[30:40, 50:60] = 255
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, "rgb24")))
        container.mux(stream.encode())


def find_boxes(cells: Any) -> dict[str, Any]:
    """Return bright cells as boxes; a frame without any fails."""
    boxes = [{"top": 8 * int(y), "left": 8 * int(x)} for y, x in np.argwhere(cells[0, 0] > 180)]
    if not boxes:
        raise ValueError("an empty frame")
    return {"boxes": boxes, "count": len(boxes)}


def make_detector() -> pl.Pipeline:
    """Return a pipeline from the frame of a film to detections."""
    b = pl.GraphBuilder("cells")
    gray = b.input("gray", "float32", (1, 1, *FRAME))
    b.output("cells", b.op("AveragePool", gray, kernel_shape=[8, 8], strides=[8, 8]))
    return pl.pipeline(
        pl.step(lambda frame: frame.astype(np.float32).mean(2)[None, None], ordered=False),
        b.build(),
        pl.step(find_boxes, ordered=False),
        example=np.full((*FRAME, 3), 255, np.uint8),
    )


def make_row(item: Any) -> dict[str, Any]:
    """Return a row of a column without values at first, and of one with values of two types."""
    number = int(item["x"][0])
    row = {"late": {"v": None if number < 90 else number}, "v": number % 23 or "text"}
    return row if number % 37 else {**row, "more": 1}


def make_plan(kind: str) -> Any:
    """Return a plan with or without state, several items of which are in flight."""
    if kind == "video":
        return make_detector()
    if kind == "rows":
        return pl.pipeline(pl.step(make_row, ordered=False), example={"x": np.zeros(3)})
    b = pl.GraphBuilder(kind)
    x = b.input("x", "float32", (1, 3))
    found = (x * 2.0).relu()
    if kind in STATEFUL:
        total = b.variable("total", np.zeros((1, 3), "float32"))
        found = total.assign(total * 0.5 + found)
    b.output("y", found)
    return pl.plan(b.build(), ["worker:0" if kind == "workers" else "cpu"], max_in_flight=4)


def read(position: int) -> Iterator[Any]:
    """Yield items, of which some cannot be fed."""
    for number in range(position, ITEMS):
        x = np.full(3, number, "float32" if number % 17 else "float64")
        yield {"x": x, "camera": number * number % 7}


def read_frames(file: Path, position: int) -> Iterator[Any]:
    for frame in islice(pl.sources.read_video(file), position, None):
        yield frame.value


def make_job(kind: str, plan: Any, folder: Path, **options: Any) -> pl.Job:
    sink = "jsonl" if kind in STATEFUL else "parquet"
    given = {"commit_items": COMMIT_ITEMS, "part_items": PART_ITEMS, **options}
    if kind == "shards":  # a shard is what is run again
        given |= {"order": "shard", "part_items": COMMIT_ITEMS}
    if kind == "keyed":
        given["key"] = "camera"
    film = folder.parent / "film.mp4"
    source = pl.jobs.JobSource(partial(read_frames, film) if kind == "video" else read, ITEMS)
    return pl.Job(plan, source, sink, folder, **given)


def kill_at(moment: int) -> None:
    """Have this process group killed when that many lines of the job's code have run."""
    left = moment

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(FILES):
            return None
        left -= event == "line"
        if left < 0:
            os.killpg(0, signal.SIGKILL)
        return count

    sys.settrace(count)


def run_in_child(job: pl.Job, done: Path, seconds: float = 0, lines: int = 0) -> bool:
    """Run the job in a process that may be killed; return whether it came to the end."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        signal.setitimer(signal.ITIMER_REAL, seconds)  # nothing handles it: it kills
        log = os.open(done, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        if lines:
            kill_at(lines)
        job.run(progress=lambda number: os.pwrite(log, number.to_bytes(8, "big"), 0))
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status == 0 or os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGALRM), status
    return status == 0


def read_files(folder: Path) -> dict[str, bytes]:
    """Return digests of all files with results and errors, without tracebacks and devices."""
    files = [*(folder / "parts").iterdir(), *(folder / "errors").iterdir()]
    return {
        f"{file.parent.name}/{file.name}": sha256(_TRACEBACK.sub(b"", file.read_bytes())).digest()
        for file in files
    }


def kill_until_done(
    kind: str, plan: Any, folder: Path, most: int, calm_s: float, chance: random.Random
) -> list[int]:
    """Kill a job up to `most` times, then let it end; return its position after each kill."""
    done, positions = folder.with_suffix(".done"), list[int]()
    while len(positions) < most:
        is_timed = len(positions) > BY_LINE and len(positions) % 2
        by_line = 0 if is_timed else chance.randrange(1, LINES)
        options = {"max_in_flight": chance.choice([1, 2, 4])} if kind not in STATEFUL else {}
        job = make_job(kind, plan, folder, **options)
        if run_in_child(job, done, 0 if by_line else chance.uniform(0, calm_s / 2), by_line):
            return positions
        last = int.from_bytes(done.read_bytes()[:8], "big") if done.exists() else 0
        positions.append(show_status(folder).position)
        assert last - positions[-1] <= COMMIT_ITEMS
    assert run_in_child(make_job(kind, plan, folder), done)
    return positions


def main(parent: str, kind: str, kills: str, seed: str) -> None:
    """Print the number of kills, and of the positions at which jobs resumed."""
    calm, plan, chance = Path(parent, "calm"), make_plan(kind), random.Random(int(seed))
    if kind == "video":
        write_video(Path(parent, "film.mp4"))
    begun = time.perf_counter()
    assert run_in_child(make_job(kind, plan, calm), Path(parent, "done"))
    calm_s, found = time.perf_counter() - begun, list[int]()
    while len(found) < int(kills):
        killed = Path(parent, f"killed-{len(found)}")
        most = int(kills) - len(found)
        positions = kill_until_done(kind, plan, killed, most, calm_s, chance)
        assert positions == sorted(positions), positions
        assert read_files(killed) == read_files(calm)
        assert show_status(killed).position == ITEMS
        assert sorted(os.listdir(killed)) == sorted(os.listdir(calm))
        found += positions
    print(len(found), len(set(found)))


if __name__ == "__main__":
    main(*sys.argv[1:])
