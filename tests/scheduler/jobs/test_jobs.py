"""Jobs: rows, parts, repairs, batches and functions as sinks."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pyarrow.dataset as ds
import pytest
from job_cases import TEXTS, count_words, make_pipe, read_lines
from plait.scheduler.pipelines import api
from plait.scheduler.runtime import runtime


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


def test_what_a_job_proposes_has_a_function_called_for_one_item_at_a_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "count_cores", lambda: 2)
    monkeypatch.setattr(runtime, "_logged", set())
    for device in (None, "cpu:0"):
        pipe = pl.pipeline(pl.step(count_words, device=device), example="a", name=f"on_{device}")
        with caplog.at_level("WARNING", "plait"):
            pl.Job(pipe, TEXTS, "jsonl", tmp_path / pipe.graph.name).run()
    with pytest.raises(pl.JobError, match="device='cpu:0'"):
        step = pl.step(count_words, ordered=True)
        pl.Job(pl.pipeline(step, example="a"), TEXTS, "jsonl", tmp_path / "ordered").run()
    (line,) = caplog.messages
    assert line.startswith("2 items at once may call on_None.count_words; ")
    assert "device='cpu:0'" in line


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
    assert sorted(called) == [2, 11]
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


@pytest.mark.parametrize("total", [None, 30])
def test_a_source_of_unknown_length_is_read_once_by_a_repair(
    tmp_path: Path, total: int | None
) -> None:
    opened, is_broken, length = list[int](), True, 30

    def read(position: int) -> Iterator[int]:
        opened.append(position)
        return iter(range(position, length))

    def check(number: int) -> dict[str, int]:
        if is_broken and number % 10 == 4:
            raise ValueError
        return {"n": number}

    job = pl.Job(make_pipe(check, 0), pl.jobs.JobSource(read, total), "jsonl", tmp_path)
    assert job.run().failed == 3
    is_broken, length = False, 20
    opened.clear()
    assert job.repair().failed == 1
    assert opened == ([4] if total is None else [4, 14, 24])
    assert "the source ends before this item" in read_lines(job, job.status().errors)[0]["error"]
    assert sorted(row["n"] for row in read_lines(job)) == [n for n in range(30) if n != 24]


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


@pytest.mark.parametrize("at", [0, 3])
def test_a_repair_that_is_stopped_keeps_the_items_that_it_did_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    noted, is_broken = list[int](), False

    def check(number: int) -> dict[str, int]:
        if is_broken:
            raise ValueError
        return {"n": number}

    def stop(done: Any) -> None:
        if done == at or at == 0:
            signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda number, frame: noted.append(number))
    try:
        job = pl.Job(make_pipe(check, 0), range(9), "jsonl", tmp_path, max_in_flight=1)
        is_broken = True
        assert job.run().failed == 9
        is_broken = False
        with monkeypatch.context() as patch:
            if at == 0:  # before the first item
                patch.setattr("plait.scheduler.jobs.job._check_order", stop)
            status = job.repair(progress=stop if at else None)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert noted == [signal.SIGTERM]
    assert (0 if at else 8) < status.failed < (9 if at else 10)
    assert len(read_lines(job)) + len(read_lines(job, status.errors)) == 9
    assert job.repair().failed == 0
    assert sorted(row["n"] for row in read_lines(job)) == list(range(9))


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


@pytest.mark.parametrize("batch", [None, 4])
def test_items_that_cannot_be_fed_keep_their_places(tmp_path: Path, batch: int | None) -> None:
    b = pl.GraphBuilder("rows")
    b.output("y", b.input("x", "float32", ("n", 1)) * 2.0)
    plan = pl.plan(b.build(), bounds={"n": 4}, max_in_flight=2)
    items: list[Any] = [{"x": np.full((1, 1), n, "float32")} for n in range(20)]
    items[0], items[9], items[19] = ValueError("unread"), {"z": 1}, {"x": "text"}
    items[10] = {"x": np.zeros((9, 1), "float32")}  # beyond the bounds
    job = pl.Job(plan, items, "jsonl", tmp_path, batch=batch, part_items=7)
    assert job.run().failed == 4
    assert [row["position"] for row in read_lines(job, job.status().errors)] == [0, 9, 10, 19]
    good = [n for n in range(20) if n not in (0, 9, 10, 19)]
    assert read_lines(job) == [{"position": n, "y": [[2.0 * n]]} for n in good]


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


def test_the_status_has_bytes_and_what_limits_the_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    b = pl.GraphBuilder("twice")
    b.output("y", b.input("x", "float32", (1, 3)) * 2.0)
    items = [{"x": np.zeros(3, "float32"), "name": "not fed"}] * 20
    job = pl.Job(b.build(), items, "jsonl", tmp_path, commit_items=5, part_items=10)
    monkeypatch.setattr("plait.scheduler.jobs.run.NOTE_S", 0.0)
    with caplog.at_level("INFO", logger="plait.scheduler.jobs"):
        status = job.run()
    parts = sum((tmp_path / name).stat().st_size for name in status.parts)
    assert status.bytes_in == 20 * 3 * 4
    assert parts < status.bytes_out <= 2 * parts  # pieces, which are merged
    found = re.search(
        "one at a time|at twice its speed the rate is|of an item's time", status.limit
    )
    assert found, status.limit
    assert str(status).endswith(f"out; {status.limit}")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 5
    assert lines[1].startswith(f"{tmp_path}: stopped: 10 of 20 items, ")
    assert pl.Job(b.build(), items, "jsonl", tmp_path, part_items=10).run() == status


def test_bytes_of_texts_and_of_files_of_items_are_counted(tmp_path: Path) -> None:
    pipe = make_pipe(lambda item: {"content": item["text"]}, {"text": "a"})
    items = [{"text": "four", "rest": [b"12", np.zeros(2)]}] * 3
    job = pl.Job(pipe, items, f"{tmp_path}/files/{{position}}.txt", tmp_path / "job")
    status = job.run()
    assert (status.bytes_in, status.bytes_out) == (3 * 4, 3 * 4)


def test_a_source_without_items_is_done(tmp_path: Path) -> None:
    status = pl.Job(make_pipe(), [], "parquet", tmp_path).run()
    assert (status.position, status.total, status.is_done, status.parts) == (0, 0, True, ())


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
