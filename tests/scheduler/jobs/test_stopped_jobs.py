"""Jobs that are killed, stopped or fail, and end with the files of one that was not."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import killed_job
import numpy as np
import plait as pl
import pyarrow.dataset as ds
import pytest
from job_cases import make_sum, read_lines
from patience import WAIT_S

SUPPORT = Path(killed_job.__file__).parent


def check_kills(folder: Path, kind: str, kills: int, seed: int) -> None:
    """Run jobs in processes that are killed, and compare their files with those of a calm one."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", killed_job.__file__, folder, kind, str(kills), str(seed)],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(SUPPORT)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout.split()[0]) == kills


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stateless", "rows", "shards", "workers", "video"])
def test_a_job_that_is_killed_ends_with_the_same_bytes(tmp_path: Path, kind: str) -> None:
    check_kills(tmp_path, kind, 8, 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stateful", "keyed"])
def test_a_job_with_state_that_is_killed_ends_with_the_same_bytes(
    tmp_path: Path, kind: str
) -> None:
    check_kills(tmp_path, kind, 8, 2)


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(3, 8))
@pytest.mark.parametrize("kind", ["stateless", "rows", "stateful", "keyed", "video"])
def test_many_kills_change_nothing(tmp_path: Path, kind: str, seed: int) -> None:
    check_kills(tmp_path, kind, 60, seed)


SIGNALLED = """
import os, signal, sys
from pathlib import Path
import killed_job

folder, kind, at = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
job = killed_job.make_job(kind, killed_job.make_plan(kind), folder)
moments = [at]


def stop(done):
    if moments and done >= moments[0]:  # shards are counted at their ends
        moments.clear()
        os.kill(os.getpid(), signal.SIGTERM)


job.run(progress=stop)
print("went on")
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stateless", "stateful", "keyed", "shards"])
def test_sigterm_drains_and_commits(tmp_path: Path, kind: str) -> None:
    command = [sys.executable, "-c", SIGNALLED, str(tmp_path / "stopped"), kind, "25"]
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    ran = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert (ran.returncode, ran.stdout) == (-signal.SIGTERM, ""), ran.stderr
    stopped = killed_job.make_job(kind, killed_job.make_plan(kind), tmp_path / "stopped")
    assert 25 <= stopped.status().position < 40
    assert not stopped.status().is_done
    stopped.run()
    killed_job.make_job(kind, killed_job.make_plan(kind), tmp_path / "calm").run()
    assert killed_job.read_files(tmp_path / "stopped") == killed_job.read_files(tmp_path / "calm")


def test_a_signal_that_is_ignored_stops_no_job(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        job = pl.Job(pl.pipeline(str, example=1), range(99), "jsonl", tmp_path)
        assert job.run(progress=lambda _: signal.raise_signal(signal.SIGINT)).is_done
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("kind", ["stateless", "stateful"])
def test_an_error_of_the_source_comes_after_the_items_before_it_are_committed(
    tmp_path: Path, kind: str
) -> None:
    is_broken = True

    def read(position: int) -> Iterator[Any]:
        for number, item in enumerate(killed_job.read(position), position):
            if number == 33 and is_broken:
                raise ConnectionError("the server is away")
            yield item

    plan = killed_job.make_plan(kind)
    job = pl.Job(plan, read, "jsonl", tmp_path / "a", part_items=40, commit_items=10)
    with pytest.raises(ConnectionError):
        job.run()
    assert job.status().position == 33
    is_broken = False
    job.run()
    pl.Job(plan, killed_job.read, "jsonl", tmp_path / "b", part_items=40).run()
    assert killed_job.read_files(tmp_path / "a") == killed_job.read_files(tmp_path / "b")


def test_a_failure_that_stops_a_job_with_state_leaves_the_commit_before_it(tmp_path: Path) -> None:
    is_broken = True

    def read(position: int) -> Iterator[Any]:
        for number in range(position, 40):
            dtype = "float64" if is_broken and number == 33 else "float32"
            yield {"x": np.full(2, number, dtype)}

    plan, contents = make_sum(), []
    job = pl.Job(plan, read, "jsonl", tmp_path / "a", commit_items=10, max_failed=0)
    with pytest.raises(pl.JobError, match="1 item failed, and max_failed is 0"):
        job.run()
    assert (job.status().position, job.status().failed) == (30, 0)
    is_broken = False
    for folder in "ab":
        job = pl.Job(plan, read, "jsonl", tmp_path / folder, max_failed=0)
        assert job.run().is_done
        contents.append(killed_job.read_files(job.folder))
    assert contents[0] == contents[1]
    with pytest.raises(pl.JobError, match="values at a failed item are gone"):
        job.repair()


@pytest.mark.parametrize("key", ["camera", lambda item: item["camera"]])
def test_states_by_key_are_part_of_a_commit(tmp_path: Path, key: Any) -> None:
    def read(position: int) -> Iterator[Any]:
        for number in range(position, 30):
            if number == stops_at:
                raise ConnectionError
            yield {"camera": f"camera {number % 3}", "x": np.full(2, number, "float32")}

    plan, contents = make_sum(), []
    for folder, stops in (("calm", [None]), ("stopped", [7, 16, None])):
        for stops_at in stops:
            job = pl.Job(plan, read, "jsonl", tmp_path / folder, part_items=8, key=key)
            try:
                job.run()
            except ConnectionError:
                assert stops_at == job.status().position
        contents.append(killed_job.read_files(job.folder))
    assert contents[0] == contents[1]
    sums = [row["sum"][0][0] for row in read_lines(job)]
    assert sums == [sum(range(number % 3, number + 1, 3)) for number in range(30)]
    with pytest.raises(pl.JobError, match="the job's key changed"):
        pl.Job(plan, read, "jsonl", job.folder, part_items=8).run()


def test_random_numbers_do_not_depend_on_where_a_job_was_stopped(tmp_path: Path) -> None:
    b = pl.GraphBuilder("noise")
    x = b.input("x", "float32", (1, 3))
    b.output("y", b.op("Add", x, b.op("RandomUniformLike", x)))
    plan = pl.plan(b.build())
    item = {"x": np.zeros(3, "float32")}
    for folder, ends in (("a", [12]), ("b", [5, 12])):
        for end in ends:
            job = pl.Job(plan, [item] * end, "jsonl", tmp_path / folder, seed=3)
            job.run()
    a, b_ = (killed_job.read_files(tmp_path / folder) for folder in "ab")
    assert a == b_
    assert len({tuple(row["y"][0]) for row in read_lines(job)}) == 12


def fail_on(suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill the disk up when a file of that suffix is synchronised."""
    fsync = os.fsync

    def fill(file: int) -> None:
        if suffix in os.readlink(f"/proc/self/fd/{file}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(file)

    monkeypatch.setattr("os.fsync", fill)


@pytest.mark.parametrize("suffix", [".parquet.", ".jsonl.", "manifest", "variables-"])
def test_a_full_disk_ends_the_run_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    kind = "stateful" if suffix == "variables-" else "stateless"
    plan = killed_job.make_plan(kind)
    with monkeypatch.context() as patch:
        fail_on(suffix, patch)
        with pytest.raises(pl.PlaitError, match="No space left on device") as caught:
            killed_job.make_job(kind, plan, tmp_path / "full").run()
        if kind == "stateless":
            assert "run() again: the job goes on at item 0" in str(caught.value)
    killed_job.make_job(kind, plan, tmp_path / "full").run()
    killed_job.make_job(kind, plan, tmp_path / "calm").run()
    assert killed_job.read_files(tmp_path / "full") == killed_job.read_files(tmp_path / "calm")
    assert sorted(os.listdir(tmp_path / "full")) == sorted(os.listdir(tmp_path / "calm"))


ROWS = """
import resource
import sys

import numpy as np
import plait as pl

b = pl.GraphBuilder("twice")
b.output("y", b.input("x", "float32", (1,)) * 2.0)
seen = {}


def note(done):
    if done % 100_000 == 0:
        seen[done] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def read(position):
    for number in range(position, 1_000_000):
        yield {"x": np.full(1, number, "float32")}


pl.Job(pl.plan(b.build()), read, "parquet", sys.argv[1]).run(progress=note)
print(seen[1_000_000] / seen[200_000])
"""


@pytest.mark.extended
def test_memory_does_not_grow_with_a_million_rows(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ROWS, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) < 1.1
    assert ds.dataset(tmp_path / "parts").count_rows() == 1_000_000


ON_DISK = """
import sys
from pathlib import Path
import killed_job
import plait as pl

try:
    killed_job.make_job("stateless", killed_job.make_plan("stateless"), Path(sys.argv[1])).run()
except pl.JobError as error:
    sys.exit(f"refused: {error}")
"""

MOUNTED = """
set -e
mount -t tmpfs -o size=24k tmpfs "$1"
! "$2" -c "$3" "$1/job" 2> "$4/full"
mount -o remount,size=16m "$1"
"$2" -c "$3" "$1/job"
mount -o remount,ro "$1"
! "$2" -c "$3" "$1/job" 2> "$4/read-only"
cp -r "$1/job" "$4/job"
"""


@pytest.mark.extended
def test_a_job_goes_on_once_a_full_disk_has_room_and_refuses_one_that_cannot_be_written(
    tmp_path: Path,
) -> None:
    (tmp_path / "disk").mkdir()
    given = [tmp_path / "disk", sys.executable, ON_DISK, tmp_path]
    command = ["unshare", "--mount", "sh", "-c", MOUNTED, "sh", *map(str, given)]
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this process may not mount file systems")
    ran = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    full = (tmp_path / "full").read_text()
    assert "No space left on device" in full
    assert "run() again: the job goes on at item" in full
    assert "cannot write to the folder" in (tmp_path / "read-only").read_text()
    killed_job.make_job("stateless", killed_job.make_plan("stateless"), tmp_path / "calm").run()
    assert killed_job.read_files(tmp_path / "job") == killed_job.read_files(tmp_path / "calm")


def test_a_process_beside_one_that_runs_the_job_is_refused(tmp_path: Path) -> None:
    refused = list[str]()

    def read(position: int) -> Iterator[Any]:
        command = [sys.executable, "-c", ON_DISK, str(tmp_path)]
        environment = {**os.environ, "PYTHONPATH": str(SUPPORT)}
        ran = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False
        )
        refused.append(ran.stderr)
        return killed_job.read(position)

    plan, source = killed_job.make_plan("stateless"), pl.jobs.JobSource(read, killed_job.ITEMS)
    assert pl.Job(plan, source, "parquet", tmp_path).run().is_done
    assert "another process runs the job" in refused[0]
