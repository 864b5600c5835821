"""Jobs: files, resuming, and mistakes that are refused."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import killed_job
import msgspec
import numpy as np
import plait as pl
import pyarrow.dataset as ds
import pytest
from patience import WAIT_S
from plait.scheduler.jobs import commits

SUPPORT = Path(killed_job.__file__).parent


def count_words(text: str) -> dict[str, Any]:
    return {"words": len(text.split()), "text": text}


def make_pipe(function: Callable[..., Any] = count_words, example: Any = "a b") -> pl.Pipeline:
    return pl.pipeline(pl.step(function, ordered=False), example=example)


def read_lines(job: pl.Job, names: tuple[str, ...] | None = None) -> list[dict[str, Any]]:
    parts = job.status().parts if names is None else names
    return [
        json.loads(line) for name in parts for line in (job.folder / name).read_text().splitlines()
    ]


def make_sum() -> pl.Plan:
    b = pl.GraphBuilder("sum")
    x = b.input("x", "float32", (1, 2))
    total = b.variable("total", np.zeros((1, 2), "float32"))
    b.output("sum", total.assign(total + x))
    return pl.plan(b.build(), max_in_flight=2)


TEXTS = ["one", "two words", "and three words"] * 7


def test_a_job_writes_a_row_for_each_item(tmp_path: Path) -> None:
    seen: list[int] = []
    job = pl.Job(make_pipe(), TEXTS, "jsonl", tmp_path, part_items=8)
    status = job.run(progress=seen.append)
    assert (status.position, status.total, status.failed, status.is_done) == (21, 21, 0, True)
    assert [len((tmp_path / name).read_text().splitlines()) for name in status.parts] == [8, 8, 5]
    assert read_lines(job) == [
        {"position": index, "words": len(text.split()), "text": text}
        for index, text in enumerate(TEXTS)
    ]
    assert seen == list(range(1, 22))
    assert str(status).startswith("done: 21 of 21 items, ")


def test_a_job_that_is_done_does_nothing_until_there_are_more_items(tmp_path: Path) -> None:
    texts, manifest = TEXTS[:10], tmp_path / "manifest.json"
    pipe = make_pipe()

    def run() -> list[dict[str, Any]]:
        job = pl.Job(
            pipe, pl.jobs.JobSource(lambda at: texts[at:]), "jsonl", tmp_path, part_items=8
        )
        before = manifest.stat().st_mtime_ns if manifest.exists() else 0
        job.run()
        is_same = before == manifest.stat().st_mtime_ns
        assert is_same == (before != 0 and len(texts) == 10)
        return read_lines(job)

    assert run() == run()
    texts += TEXTS[10:]
    assert [row["text"] for row in run()] == TEXTS
    assert len(list((tmp_path / "parts").iterdir())) == 3  # the short part was merged


@pytest.mark.parametrize("size", [3, 8, 100])
def test_commits_do_not_change_the_files(tmp_path: Path, size: int) -> None:
    contents = []
    for every in (1, 3, 50):
        folder = tmp_path / str(every)
        pl.Job(make_pipe(), TEXTS, "parquet", folder, part_items=size, commit_items=every).run()
        contents.append({file.name: file.read_bytes() for file in (folder / "parts").iterdir()})
    assert contents[0] == contents[1] == contents[2]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    ("kind", "lives", "seed"),
    [
        ("stateless", 8, 1),
        pytest.param("stateful", 8, 2, marks=[]),
        *[
            pytest.param(kind, 60, seed, marks=pytest.mark.extended)
            for kind in ("stateless", "stateful")
            for seed in range(3, 6)
        ],
    ],
)
def test_a_job_that_is_killed_ends_with_the_same_bytes(
    tmp_path: Path, kind: str, lives: int, seed: int
) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", killed_job.__file__, tmp_path, kind, str(lives), str(seed)],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(SUPPORT)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert ran.returncode == 0, ran.stderr
    killed, positions, _ = map(int, ran.stdout.split())
    assert killed > 2
    assert positions > 1


SIGNALLED = """
import os, signal, sys
from pathlib import Path
import killed_job
import msgspec

folder, kind, at = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
job = killed_job.make_job(kind, killed_job.make_plan(kind), folder)
job.run(progress=lambda done: done == at and os.kill(os.getpid(), signal.SIGTERM))
print("went on")
"""


@pytest.mark.parametrize("kind", ["stateless", "stateful"])
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


def test_failed_items_are_named_and_repaired_alone(tmp_path: Path) -> None:
    faulty, called = {2, 11}, list[int]()

    def check(number: int) -> dict[str, int]:
        called.append(number)
        if number in faulty:
            raise ValueError(f"no {number} today")
        return {"twice": 2 * number}

    job = pl.Job(make_pipe(check, 0), range(20), "parquet", tmp_path, part_items=8)
    assert job.run().failed == 2
    errors = read_lines(job, job.status().errors)
    assert [(one["position"], one["kind"]) for one in errors] == [
        (2, "KernelError"),
        (11, "KernelError"),
    ]
    assert "no 11 today" in errors[1]["error"]
    assert "node 'check'" in errors[1]["at"]
    assert "in check" in errors[1]["traceback"]
    faulty.remove(11)
    called.clear()
    assert job.repair().failed == 1
    assert called == [2, 11]
    table = ds.dataset(tmp_path / "parts").to_table().sort_by("position")
    assert table.to_pylist() == [{"position": n, "twice": 2 * n} for n in range(20) if n != 2]
    faulty.clear()
    status = job.repair()
    assert (status.failed, status.errors) == (0, ())
    assert list((tmp_path / "errors").iterdir()) == []
    assert ds.dataset(tmp_path / "parts").count_rows() == 20
    called.clear()
    assert job.repair().failed == 0
    assert called == []


def test_a_failed_repair_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faulty = {2, 11}

    def check(number: int) -> dict[str, int]:
        if number in faulty:
            raise ValueError
        return {"twice": 2 * number}

    job = pl.Job(make_pipe(check, 0), range(20), "jsonl", tmp_path, part_items=8)
    job.run()
    faulty.remove(2)
    job.repair()
    faulty.clear()

    def fail(*arguments: Any) -> None:
        raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr("plait.scheduler.jobs.run.commit", fail)
        with pytest.raises(InterruptedError):
            job.repair()
    assert job.status().failed == 1
    assert job.repair().failed == 0
    assert sorted(row["position"] for row in read_lines(job)) == list(range(20))


def test_a_batch_does_not_take_the_good_items_with_the_bad_ones(tmp_path: Path) -> None:
    @pl.operator(pl.TensorSpec("float32", ("n", 1)), inputs=[pl.TensorSpec("float32", ("n", 1))])
    def check(x: np.ndarray) -> np.ndarray:
        if (x == 5).any():
            raise ValueError("five")
        return x + 1

    b = pl.GraphBuilder("rows")
    b.output("y", b.call(check, b.input("x", "float32", ("n", 1))))
    plan = pl.plan(b.build(), bounds={"n": 4}, max_in_flight=2)
    items = [{"x": np.full((1, 1), n, "float32")} for n in range(11)]
    for batch in (None, 4):
        job = pl.Job(plan, items, "npz", tmp_path / str(batch), batch=batch)
        assert job.run().failed == 1
        with np.load(job.folder / job.status().parts[0]) as found:
            assert found["position"].tolist() == [n for n in range(11) if n != 5]
            assert found["y"].ravel().tolist() == [n + 1 for n in range(11) if n != 5]


def test_other_workers_and_batches_do_not_change_what_is_left(tmp_path: Path) -> None:
    b = pl.GraphBuilder("rows")
    b.output("y", b.input("x", "float32", ("n", 1)) * 2.0)
    graph, items = b.build(), [{"x": np.full((1, 1), n, "float32")} for n in range(30)]
    plans: list[tuple[pl.Plan, dict[str, Any]]] = [
        (pl.plan(graph, bounds={"n": 4}), {}),
        (pl.plan(graph, ["cpu:0..1"], bounds={"n": 8}, max_in_flight=3), {"batch": 3}),
        (pl.plan(graph, ["worker:0"], bounds={"n": 2}), {"max_in_flight": 1}),
    ]
    limit = 10
    for plan, options in plans:

        def read(position: int, limit: int = limit) -> Iterator[Any]:
            yield from items[position:limit]
            if limit < 30:
                raise ConnectionError

        job = pl.Job(plan, read, "parquet", tmp_path, part_items=8, **options)
        if limit < 30:
            with pytest.raises(ConnectionError):
                job.run()
        else:
            job.run()
        limit += 10
    rows = ds.dataset(tmp_path / "parts").to_table().to_pylist()
    assert rows == [{"position": n, "y": [[2.0 * n]]} for n in range(30)]


def test_a_changed_model_is_refused_unless_it_is_accepted(tmp_path: Path) -> None:
    def make(factor: float) -> pl.Graph:
        b = pl.GraphBuilder("scale")
        b.output("y", b.input("x", "float32", ()) * factor)
        return b.build()

    items = [{"x": np.float32(n)} for n in range(4)]
    pl.Job(make(2.0), items[:2], "jsonl", tmp_path).run()
    with pytest.raises(pl.JobError, match="the job's model changed since its last commit"):
        pl.Job(make(3.0), items, "jsonl", tmp_path).run()
    pl.Job(make(2.0), items[:3], "jsonl", tmp_path).run()
    job = pl.Job(make(3.0), items, "jsonl", tmp_path, accept_changes=True)
    job.run()
    assert [row["y"] for row in read_lines(job)] == [0, 2, 4, 9]
    pl.Job(make(3.0), items, "jsonl", tmp_path).run()


def test_a_changed_function_is_refused(tmp_path: Path) -> None:
    def first(text: str) -> str:
        return text.upper()

    def second(text: str) -> str:
        return text.lower()

    second.__name__ = second.__qualname__ = "first"
    pl.Job(make_pipe(first), TEXTS, "jsonl", tmp_path).run()
    pl.Job(make_pipe(first), TEXTS, "jsonl", tmp_path).run()
    with pytest.raises(pl.JobError, match="the job's code changed") as caught:
        pl.Job(make_pipe(second), TEXTS, "jsonl", tmp_path).run()
    assert "accept_changes=True" in str(caught.value)


@pytest.mark.parametrize(("change", "what"), [({"seed": 1}, "seed"), ({"part_items": 9}, "sink")])
def test_changed_settings_are_refused(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    pipe = make_pipe()
    pl.Job(pipe, TEXTS, "jsonl", tmp_path).run()
    with pytest.raises(pl.JobError, match=f"the job's {what} changed"):
        pl.Job(pipe, TEXTS, "jsonl", tmp_path, **change).run()


def test_a_function_that_keeps_state_is_refused(tmp_path: Path) -> None:
    seen = list[str]()

    def number(text: str) -> int:
        seen.append(text)
        return len(seen)

    pipe = pl.pipeline(number, example="a")
    with pytest.raises(pl.JobError, match="a commit saves variables alone"):
        pl.Job(pipe, TEXTS, "jsonl", tmp_path).run()


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


def test_a_function_gets_the_rows_at_least_once(tmp_path: Path) -> None:
    rows = list[dict[str, Any]]()
    is_broken = True

    def write(found: list[dict[str, Any]]) -> None:
        rows.extend(found)
        if is_broken and found[0]["position"] == 10:
            raise ConnectionError("the database is away")

    pipe = make_pipe()
    job = pl.Job(pipe, TEXTS, write, tmp_path, commit_items=5)
    assert job.at_least_once
    assert not pl.Job(pipe, TEXTS, "jsonl", tmp_path).at_least_once
    with pytest.raises(ConnectionError):
        job.run()
    assert job.status().position == 10
    is_broken = False
    assert job.run().is_done
    assert [row["position"] for row in rows] == [*range(15), *range(10, 21)]
    assert job.status().parts == ()


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


def test_a_folder_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(pl.JobError, match="cannot write to the folder"):
        pl.Job(make_pipe(), TEXTS, "jsonl", "/proc/self/job").run()


@pytest.mark.parametrize(
    ("before", "after"),
    [(b'"position":21', b'"position":12'), (b"{", b"["), (b'"version":1', b'"version":7')],
)
def test_a_damaged_manifest_is_refused(tmp_path: Path, before: bytes, after: bytes) -> None:
    job = pl.Job(make_pipe(), TEXTS, "jsonl", tmp_path)
    parts = job.run().parts
    manifest = tmp_path / "manifest.json"
    content = manifest.read_bytes()
    manifest.write_bytes(content.replace(before, after))
    for call in (job.run, job.repair, job.status):
        with pytest.raises(pl.JobError, match="the manifest cannot be used"):
            call()
    assert (tmp_path / parts[0]).exists()
    manifest.write_bytes(content)
    assert job.run().is_done


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    pipe = make_pipe()
    refused = list[str]()

    def read(position: int) -> Iterator[str]:
        other = pl.Job(pipe, TEXTS, "jsonl", tmp_path)
        assert other.status().is_running
        with pytest.raises(pl.JobError) as caught:
            other.run()
        refused.append(str(caught.value))
        yield from TEXTS

    job = pl.Job(pipe, read, "jsonl", tmp_path)
    assert job.run().is_done
    assert "another process runs the job" in refused[0]
    assert not job.status().is_running


def test_a_status_that_is_asked_for_keeps_no_job_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = pl.Job(make_pipe(), TEXTS, "jsonl", tmp_path)
    job.run()
    file = os.open(tmp_path / "lock", os.O_RDONLY)
    assert commits._lock(file)
    with monkeypatch.context() as patch:
        patch.setattr("time.sleep", lambda seconds: os.close(file))
        job.run()


def test_too_many_failures_stop_the_job(tmp_path: Path) -> None:
    job = pl.Job(make_pipe(), [None] * 50, "jsonl", tmp_path, max_failed=3)
    with pytest.raises(pl.JobError, match="4 items failed, and 3 may"):
        job.run()
    assert job.status().position == 0


def test_foreign_files_in_the_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "README").write_text("mine")
    (tmp_path / "notes.txt").write_text("mine")
    pl.Job(make_pipe(), TEXTS, "jsonl", tmp_path).run()
    assert (tmp_path / "parts" / "README").exists()
    assert (tmp_path / "notes.txt").exists()


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"sink": "csv"}, "the sink is 'csv'"),
        ({"source": 7}, "cannot read a int from a position"),
        ({"source": "/none/*.jpg"}, "there is no file"),
        ({"source": "/none.jsonl"}, "there is no file"),
        ({"source": "/none.parquet"}, "cannot read the rows"),
        ({"commit_items": 0}, "commit_items is 0"),
        ({"part_items": 1.5}, "part_items is 1.5"),
        ({"ordered": False}, "takes no ordered="),
        ({"workers": 2}, "takes no workers="),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(
    tmp_path: Path, arguments: dict[str, Any], what: str
) -> None:
    given = {"work": make_pipe(), "source": TEXTS, "sink": "jsonl", "folder": tmp_path / "new"}
    with pytest.raises(pl.PlaitError, match=what):
        pl.Job(**{**given, **arguments})
    assert not (tmp_path / "new").exists()


@pytest.mark.extended
def test_memory_does_not_grow_with_a_million_rows(tmp_path: Path) -> None:
    code = """
import resource, sys
import plait as pl
import numpy as np

b = pl.GraphBuilder("twice")
b.output("y", b.input("x", "float32", (1,)) * 2.0)
seen = {}

def note(done):
    if done % 100_000 == 0:
        seen[done] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

def read(position):
    for n in range(position, 1_000_000):
        yield {"x": np.full(1, n, "float32")}

pl.Job(pl.plan(b.build()), read, "parquet", sys.argv[1]).run(progress=note)
print(seen[1_000_000] / seen[200_000])
"""
    ran = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, timeout=WAIT_S
    )
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) < 1.1
    assert ds.dataset(tmp_path / "parts").count_rows() == 1_000_000


@pytest.mark.parametrize("change", [{"parts": ("../mine.jsonl",)}, {"position": -1}])
def test_a_manifest_that_names_files_of_others_is_refused(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    folder, mine = tmp_path / "job", tmp_path / "mine.jsonl"
    mine.write_text("mine")
    job = pl.Job(make_pipe(), TEXTS, "jsonl", folder)
    forged = msgspec.structs.replace(job.run(), **change)
    commits.commit(folder, forged, forged, pl.JobError)
    with pytest.raises(pl.JobError, match="names other files"):
        job.run()
    assert mine.exists()
