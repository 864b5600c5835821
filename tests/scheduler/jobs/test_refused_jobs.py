"""Jobs that are refused: changes, damage, a second process, mistakes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import plait as pl
import pyarrow.dataset as ds
import pytest
from job_cases import TEXTS, make_pipe, read_lines
from plait.scheduler.jobs import commits


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


@pytest.mark.parametrize("change", [{"seed": 1}, {"part_items": 9}])
def test_changed_settings_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    pipe, (what,) = make_pipe(), change
    pl.Job(pipe, TEXTS, "jsonl", tmp_path).run()
    with pytest.raises(pl.JobError, match=f"the job's {what} changed"):
        pl.Job(pipe, TEXTS, "jsonl", tmp_path, **change).run()


def test_another_format_is_refused_in_any_case(tmp_path: Path) -> None:
    pipe = make_pipe()
    pl.Job(pipe, TEXTS, "parquet", tmp_path).run()
    with pytest.raises(pl.JobError, match="wrote Parquet so far, and the sink is JsonLines"):
        pl.Job(pipe, TEXTS, "jsonl", tmp_path, accept_changes=True).run()


def test_other_sizes_of_parts_may_be_accepted(tmp_path: Path) -> None:
    texts, pipe = list(TEXTS[:12]), make_pipe()
    for size in (5, 9, 4):
        job = pl.Job(pipe, texts, "parquet", tmp_path, part_items=size, accept_changes=True)
        job.run()
        texts += TEXTS[:3]
    found = ds.dataset(tmp_path / "parts").to_table()
    assert found["position"].to_pylist() == list(range(18))


def test_a_function_that_keeps_state_is_refused(tmp_path: Path) -> None:
    seen = list[str]()

    def number(text: str) -> int:
        seen.append(text)
        return len(seen)

    pipe = pl.pipeline(number, example="a")
    with pytest.raises(pl.JobError, match="a commit saves variables alone"):
        pl.Job(pipe, TEXTS, "jsonl", tmp_path).run()


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


@pytest.mark.parametrize("sink", ["jsonl", "parquet", "npz"])
@pytest.mark.parametrize("content", [b"", b"\xff damaged", None])
def test_damaged_pieces_and_errors_are_refused(
    tmp_path: Path, sink: str, content: bytes | None
) -> None:
    def damage(names: tuple[str, ...]) -> None:
        for name in names:
            (tmp_path / name).unlink()
            if content is not None:
                (tmp_path / name).write_bytes(content)

    def double(number: int) -> int:
        return 2 * number

    job = pl.Job(make_pipe(double, 0), [1, None, 3], sink, tmp_path)
    job.run()
    damage(job.status().errors)
    with pytest.raises(pl.JobError, match="of the last commit cannot be read"):
        job.repair()
    damage(job.status().parts)
    if sink != "jsonl" or content is None:
        with pytest.raises(pl.JobError, match="of the last commit cannot be read"):
            job.run()


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
    with pytest.raises(pl.JobError, match="4 items failed, and max_failed is 3"):
        job.run()
    assert job.status().position == 0


def test_foreign_files_in_the_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "README").write_text("mine")
    (tmp_path / "parts" / "part-0.jsonl").write_text("mine")
    (tmp_path / "part-000000000000-000000000021.jsonl").write_text("mine")
    (tmp_path / "notes.txt").write_text("mine")
    pl.Job(make_pipe(), TEXTS, "jsonl", tmp_path).run()
    assert (tmp_path / "parts" / "README").exists()
    assert (tmp_path / "parts" / "part-0.jsonl").exists()
    assert (tmp_path / "part-000000000000-000000000021.jsonl").exists()
    assert (tmp_path / "notes.txt").exists()


def test_parts_without_a_manifest_are_refused_and_stay(tmp_path: Path) -> None:
    job = pl.Job(make_pipe(), TEXTS, "jsonl", tmp_path)
    (part,) = job.run().parts
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(pl.JobError, match="no manifest says of which job"):
        job.run()
    assert (tmp_path / part).exists()


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"sink": "csv"}, "the sink is 'csv'"),
        ({"source": 7}, "cannot read a int from a position"),
        ({"source": "/none/*.jpg"}, "there is no file"),
        ({"source": "/none.jsonl"}, "there is no file"),
        ({"source": "/none.parquet"}, "cannot read the rows: FileNotFoundError"),
        ({"commit_items": 0}, "commit_items is 0"),
        ({"part_items": 1.5}, "part_items is 1.5"),
        ({"commit_s": "1"}, "commit_s is '1'"),
        ({"commit_s": float("nan")}, "commit_s is nan"),
        ({"ordered": False}, "takes no ordered="),
        ({"workers": 2}, "takes no workers="),
        ({"comit_s": 1}, r"takes no comit_s=\n.*use commit_s="),
        ({"max_fails": 1}, r"takes no max_fails=\n.*use max_failed="),
        ({"evict": Path("states")}, "states in files are not part of a commit"),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(
    tmp_path: Path, arguments: dict[str, Any], what: str
) -> None:
    given = {"work": make_pipe(), "source": TEXTS, "sink": "jsonl", "folder": tmp_path / "new"}
    with pytest.raises(pl.PlaitError, match=what):
        pl.Job(**{**given, **arguments})
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("change", [{"parts": ("../mine.jsonl",)}, {"position": -1}])
def test_a_manifest_that_names_files_of_others_is_refused(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    folder, mine = tmp_path / "job", tmp_path / "mine.jsonl"
    mine.write_text("mine")
    job = pl.Job(make_pipe(), TEXTS, "jsonl", folder)
    forged = msgspec.structs.replace(job.run(), **change)
    commits.commit(folder, forged, forged, pl.JobError)
    with pytest.raises(pl.JobError, match="the manifest cannot be used"):
        job.run()
    assert mine.exists()


def test_progress_that_is_no_function_is_refused_before_an_item_runs(tmp_path: Path) -> None:
    job = pl.Job(make_pipe(), TEXTS, "jsonl", tmp_path)
    for run in job.run, job.repair:
        with pytest.raises(pl.JobError, match="progress is True"):
            run(progress=True)  # type: ignore[arg-type]
    assert not [*tmp_path.iterdir()]
