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
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import plait as pl
from plait.scheduler.jobs.commits import show_status

ITEMS, COMMIT_ITEMS, PART_ITEMS = 240, 10, 40
BY_LINE, LINES = 2, 4000
"""The first lives end by line: all of them take fewer lines than a whole job, on any machine."""
_TRACEBACK = re.compile(rb'"traceback":.*')
FILES = ("commits.py", "run.py", "sinks.py", "files.py")


def make_plan(kind: str) -> pl.Plan:
    """Return a plan with or without state, several items of which are in flight."""
    b = pl.GraphBuilder(kind)
    x = b.input("x", "float32", (1, 3))
    found = (x * 2.0).relu()
    if kind == "stateful":
        total = b.variable("total", np.zeros((1, 3), "float32"))
        found = total.assign(total * 0.5 + found)
    b.output("y", found)
    return pl.plan(b.build(), ["worker:0" if kind == "workers" else "cpu"], max_in_flight=4)


def read(position: int) -> Iterator[Any]:
    """Yield items, of which some cannot be fed."""
    for number in range(position, ITEMS):
        yield {"x": np.full(3, number, "float32" if number % 17 else "float64")}


def make_job(kind: str, plan: pl.Plan, folder: Path, **options: Any) -> pl.Job:
    sink = "jsonl" if kind == "stateful" else "parquet"
    given = {"commit_items": COMMIT_ITEMS, "part_items": PART_ITEMS, **options}
    return pl.Job(plan, pl.jobs.JobSource(read, ITEMS), sink, folder, **given)


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
    """Return digests of all files with results and errors, but for tracebacks."""
    files = [*(folder / "parts").iterdir(), *(folder / "errors").iterdir()]
    return {
        f"{file.parent.name}/{file.name}": sha256(_TRACEBACK.sub(b"", file.read_bytes())).digest()
        for file in files
    }


def kill_until_done(
    kind: str, plan: pl.Plan, folder: Path, most: int, calm_s: float, chance: random.Random
) -> list[int]:
    """Kill a job up to `most` times, then let it end; return its position after each kill."""
    done, positions = folder.with_suffix(".done"), list[int]()
    while len(positions) < most:
        is_timed = len(positions) > BY_LINE and len(positions) % 2
        by_line = 0 if is_timed else chance.randrange(1, LINES)
        options = {"max_in_flight": chance.choice([1, 2, 4])} if kind != "stateful" else {}
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
