"""Jobs that write a file for each item."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from job_cases import read_lines

SHAPE = 16, 16, 3


def run(
    folder: Path, results: list[Any], sink: Any, items: Any = None, **options: Any
) -> pl.jobs.JobStatus:
    """Run a job with these results, in a new folder."""
    pipe = pl.pipeline(pl.step(lambda n: results[n], ordered=False), example=0)
    job = pl.Job(pipe, items or range(len(results)), sink, folder / "job", **options)
    return job.run()


def read_errors(folder: Path, status: pl.jobs.JobStatus) -> list[str]:
    texts = [(folder / "job" / name).read_text() for name in status.errors]
    return [json.loads(line)["error"] for line in "".join(texts).splitlines()]


def test_each_item_gets_a_file_named_by_its_row(tmp_path: Path) -> None:
    results = [{"id": f"a{n}", "score": np.float32(n)} for n in range(5)]
    run(tmp_path, results, f"{tmp_path}/out/{{id}}/{{position:03d}}.json")
    found = {
        str(path.relative_to(tmp_path / "out")): json.loads(path.read_text())
        for path in (tmp_path / "out").rglob("*.*")
    }
    assert found == {
        f"a{n}/00{n}.json": {"position": n, "id": f"a{n}", "score": n} for n in range(5)
    }


def test_a_function_of_the_row_names_the_file(tmp_path: Path) -> None:
    sink = pl.jobs.Files(lambda row: tmp_path / f"{row['position'] % 2}" / f"{row['result']}.txt")
    run(tmp_path, ["a", "b", "c"], sink)
    assert {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.glob("?/*")} == {
        "0/a.txt": "a",
        "0/c.txt": "c",
        "1/b.txt": "b",
    }


def read_image(path: Path) -> Any:
    return np.asarray(pytest.importorskip("PIL.Image").open(path))


def read_sound(path: Path, dtype: str = "float32") -> Any:
    samples, rate = pytest.importorskip("soundfile").read(path, dtype=dtype)
    assert rate == 16_000
    return samples


def read_video(path: Path) -> Any:
    with pytest.importorskip("av").open(path) as file:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)])


SOUND = np.sin(np.arange(800, dtype="float32") / 9).reshape(400, 2) / 2
FRAMES = np.stack([np.full(SHAPE, 40 * n + 20, "uint8") for n in range(4)])


@pytest.mark.parametrize(
    ("ending", "value", "read", "off"),
    [
        (".npy", np.arange(6.0).reshape(2, 3), np.load, 0),
        (".png", np.arange(768).astype("uint8").reshape(SHAPE), read_image, 0),
        (".PNG", np.arange(256).astype("uint8").reshape(16, 16), read_image, 0),
        (".wav", SOUND, read_sound, 1e-4),
        (".flac", SOUND[:, 0], read_sound, 1e-4),
        (".wav", np.arange(-9, 9, dtype="int16"), partial(read_sound, dtype="int16"), 0),
        (".mp4", FRAMES, read_video, 3),
        (".mkv", FRAMES, read_video, 3),
    ],
)
def test_arrays_are_written_in_the_format_of_the_ending(
    tmp_path: Path, ending: str, value: Any, read: Callable[[Path], Any], off: float
) -> None:
    for name in ("a", "b"):
        status = run(tmp_path / name, [{"id": 7, "v": value}], f"{tmp_path}/{name}/{{id}}{ending}")
        assert read_errors(tmp_path / name, status) == []
    found = read(tmp_path / "a" / f"7{ending}")
    assert (found.shape, found.dtype) == (value.shape, value.dtype)
    np.testing.assert_allclose(found.astype("f8"), value.astype("f8"), atol=off)
    contents = {(tmp_path / name / f"7{ending}").read_bytes() for name in ("a", "b")}
    assert len(contents) == 1


@pytest.mark.parametrize(
    "id", ["../up", "/etc/passwd", "..", "", "a\\b", "nul\0", "n" * 300, "a/b"]
)
def test_a_value_that_leads_elsewhere_fails_its_item(tmp_path: Path, id: str) -> None:
    results = [{"id": "good", "v": 1}, {"id": id, "v": 2}, {"v": 3}]
    status = run(tmp_path, results, f"{tmp_path}/out/{{id}}/{{id}}.json")
    unfit, missing = read_errors(tmp_path, status)
    assert "cannot be" in unfit
    assert "the row has no 'id', but position, v" in missing
    assert [path.name for path in tmp_path.glob("out/**/*.json")] == ["good.json"]


@pytest.mark.parametrize(
    ("result", "ending", "what"),
    [
        ({"a": "x", "b": "y"}, ".txt", "a .txt file has one value, and the row has a, b"),
        (np.zeros((2, 2)), ".png", "float64[2, 2] makes no .png file"),
        (np.zeros(3, "uint8"), ".txt", "uint8[3] makes no .txt file"),
        ([np.zeros(3), 16_000], ".wav", "list makes no .wav file"),
    ],
)
def test_a_value_of_another_kind_fails_its_item(
    tmp_path: Path, result: Any, ending: str, what: str
) -> None:
    status = run(tmp_path, [result], f"{tmp_path}/out/{{position}}{ending}")
    assert what in read_errors(tmp_path, status)[0]


@pytest.mark.parametrize("path", ["out/{", "out/{{id}}.json", "{}"])
def test_a_path_that_names_no_entry_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(pl.JobError, match="name an entry of each row"):
        run(tmp_path, [1], path)
    assert not (tmp_path / "job").exists()


def test_another_template_is_refused_on_resuming(tmp_path: Path) -> None:
    run(tmp_path, [1], f"{tmp_path}/a/{{position}}.json")
    with pytest.raises(pl.JobError, match="the job's sink changed"):
        run(tmp_path, [1], f"{tmp_path}/b/{{position}}.json")


def test_failed_items_get_their_files_by_a_repair(tmp_path: Path) -> None:
    results: list[Any] = [1, object(), 3]
    pipe = pl.pipeline(pl.step(lambda n: results[n], ordered=False), example=0)
    job = pl.Job(pipe, range(3), f"{tmp_path}/out/{{position}}.json", tmp_path / "job")
    assert job.run().failed == 1
    assert not job.at_least_once
    results[1] = 2
    assert job.repair().failed == 0
    assert sorted(os.listdir(tmp_path / "out")) == ["0.json", "1.json", "2.json"]
    assert read_lines(job) == []


def test_a_killed_job_leaves_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one overwrites the drafts of files that were under way."""

    def count(n: int) -> int:
        return n

    def make() -> pl.Job:
        pipe = pl.pipeline(pl.step(count, ordered=False), example=0)
        sink = f"{tmp_path}/out/{{position}}.json"
        return pl.Job(pipe, range(30), sink, tmp_path / "job", commit_items=10)

    replace, done = Path.replace, list[Path]()

    def kill(draft: Path, target: Path) -> None:
        done.append(target)
        if len(done) == 17:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(draft, target)

    child = os.fork()
    if child == 0:
        monkeypatch.setattr(Path, "replace", kill)
        make().run()
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert any(name.endswith(".draft") for name in os.listdir(tmp_path / "out"))
    make().run()
    assert sorted(os.listdir(tmp_path / "out")) == sorted(f"{n}.json" for n in range(30))


def test_a_full_disk_ends_the_run_and_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(file: int) -> None:
        if "/out/" in os.readlink(f"/proc/self/fd/{file}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    sink = f"{tmp_path}/out/{{position}}.json"
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fill)
        with pytest.raises(pl.JobError, match=r"cannot write .*/out/0.json: No space left"):
            run(tmp_path, [1], sink)
    assert os.listdir(tmp_path / "out") == []
    assert run(tmp_path, [1], sink).is_done
    (tmp_path / "file").write_text("")
    with pytest.raises(pl.JobError, match=r"cannot write .*FileExistsError"):
        run(tmp_path / "other", [1], f"{tmp_path}/file/{{position}}.json")
