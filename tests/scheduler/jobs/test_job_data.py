"""Data of jobs: tables, lines, files, and results of all kinds."""

from __future__ import annotations

import json
import sys
import tarfile
from collections.abc import Callable
from datetime import date
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from plait.scheduler.jobs.sources import to_source

TABLE = pa.table(
    {
        "id": pa.array(range(40), pa.int32()),
        "x": pa.array([[n, n + 1] for n in range(40)], pa.list_(pa.float32())),
        "name": [f"row {n}" for n in range(40)],
        "rate": pa.array([None if n == 7 else n / 4 for n in range(40)], pa.float64()),
    }
)


def write_tables(folder: Path) -> Path:
    folder.mkdir()
    for number in range(4):
        pq.write_table(TABLE.slice(10 * number, 10), folder / f"{number}.parquet", row_group_size=3)
    return folder


def to_plain(rows: Any) -> list[dict[str, Any]]:
    return [
        {key: v.tolist() if isinstance(v, np.ndarray | np.generic) else v for key, v in row.items()}
        for row in rows
    ]


@pytest.mark.parametrize("kind", ["folder", "pattern", "file", "feather", "table", "dataset"])
def test_rows_are_read_from_any_position(tmp_path: Path, kind: str) -> None:
    folder = write_tables(tmp_path / "data")
    pq.write_table(TABLE, tmp_path / "all.parquet", row_group_size=7)
    feather.write_feather(TABLE, tmp_path / "all.feather")
    data = {
        "folder": folder,
        "pattern": str(folder / "*.parquet"),
        "file": tmp_path / "all.parquet",
        "feather": tmp_path / "all.feather",
        "table": TABLE,
        "dataset": ds.dataset(folder),
    }[kind]
    source = pl.jobs.read_rows(data)
    assert source.total == 40
    for position in range(42):
        assert to_plain(source.open_at(position)) == TABLE.slice(position).to_pylist()


@pytest.mark.parametrize("kind", ["list_", "large_list"])
def test_lists_are_read_as_arrays_with_and_without_nulls(kind: str) -> None:
    whole: list[Any] = [[1, 2], [], [3], [4, 5, 6], [7]]
    missing: list[Any] = [[1, None], [], [3], None, [5]]
    of = getattr(pa, kind)(pa.int16())
    for values in (whole, missing):
        table = pa.table({"x": pa.chunked_array([pa.array(values * 2, of).slice(3), []], of)})
        for position in (0, 3):
            found = [row["x"] for row in pl.jobs.read_rows(table).open_at(position)]
            expected: list[Any] = (values * 2)[3 + position :]
            assert len(found) == len(expected)
            for one, other in zip(found, expected, strict=True):
                if other is None or one is None:
                    assert one is other
                else:
                    assert one.dtype == (np.float64 if None in other else np.int16)
                    np.testing.assert_array_equal(one, np.array(other, one.dtype))


def test_rows_are_selected_and_converted(tmp_path: Path) -> None:
    folder = write_tables(tmp_path / "data")
    columns: dict[str, Any] = {"half": ds.field("rate").cast("float32"), "id": ds.field("id")}
    chosen = (ds.field("id") > 3) & (ds.field("id") < 25)
    source = pl.jobs.read_rows(folder, columns, chosen)
    assert source.total is None
    rows = list(source.open_at(0))
    assert {type(row["half"]) for row in rows} <= {np.float32, float, type(None)}
    expected = ds.dataset(folder).to_table(columns=columns, filter=chosen).to_pylist()
    assert to_plain(rows) == expected
    assert to_plain(source.open_at(5)) == expected[5:]


def test_columns_feed_inputs_by_name_and_a_null_fails_its_row(tmp_path: Path) -> None:
    b = pl.GraphBuilder("rates")
    rate = b.input("rate", "float64", ())
    b.output("y", b.input("x", "float32", (1, 2)) + rate.cast(to="float32"))
    job = pl.Job(
        b.build(), write_tables(tmp_path / "data") / "*.parquet", "parquet", tmp_path / "j"
    )
    assert job.run().failed == 1
    found = ds.dataset(tmp_path / "j" / "parts").to_table().to_pylist()
    assert found == [
        {"position": n, "y": [[n + n / 4, n + 1 + n / 4]]} for n in range(40) if n != 7
    ]


def test_columns_are_kept_beside_the_results(tmp_path: Path) -> None:
    b = pl.GraphBuilder("sums")
    b.output("sum", b.input("x", "float32", (1, 2)).sum(axis=1))
    data = write_tables(tmp_path / "data") / "*.parquet"
    graph = b.build()
    job = pl.Job(graph, data, "parquet", tmp_path / "job", carry=["name", "id"], max_in_flight=1)
    job.run()
    table = ds.dataset(tmp_path / "job" / "parts").to_table()
    assert table["id"].type == pa.int32()
    assert table.to_pylist() == [
        {"position": n, "name": f"row {n}", "id": n, "sum": [2 * n + 1]} for n in range(40)
    ]
    assert pl.Job(graph, data, "jsonl", tmp_path / "other", carry="nothing").run().failed == 40
    errors = (tmp_path / "other" / "errors").iterdir()
    said = json.loads(next(errors).read_text().splitlines()[0])["error"]
    assert "has no 'nothing', which carry= names" in said
    assert "fix: it has: " in said
    with pytest.raises(pl.JobError, match="the job's carry changed"):
        pl.Job(graph, data, "parquet", tmp_path / "job").run()


def test_lines_of_json_are_read_from_any_position_and_a_damaged_one_fails_alone(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"n": 1}\n{"n": \n[2, 3]\n"text"\n')
    source = to_source(path)
    first, damaged, *others = source.open_at(0)
    assert (first, others) == ({"n": 1}, [[2, 3], "text"])
    assert isinstance(damaged, ValueError)
    assert list(source.open_at(2)) == others
    job = pl.Job(pl.pipeline(repr, example=1), path, "jsonl", tmp_path / "job")
    assert job.run().failed == 1
    error = json.loads((job.folder / job.status().errors[0]).read_text())
    assert (error["position"], error["item"]) == (1, f"line 2 of {path}")


def test_files_are_read_in_order_and_a_missing_one_fails_alone(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.bin").write_bytes(bytes([number] * number))
    source = pl.jobs.read_files(folder)
    assert (source.total, list(source.open_at(3))) == (5, [b"\3\3\3", b"\4\4\4\4"])
    job = pl.Job(pl.pipeline(len, example=b"ab"), str(folder / "*.bin"), "jsonl", tmp_path / "job")
    (folder / "2.bin").unlink()
    assert job.run().failed == 1
    assert "2.bin" in (job.folder / job.status().errors[0]).read_text()
    (folder / "2.bin").write_bytes(b"12")
    assert job.repair().failed == 0
    (folder / "9.bin").write_bytes(b"")
    with pytest.raises(pl.JobError, match="the job's source changed"):
        pl.Job(pl.pipeline(len, example=b"ab"), folder, "jsonl", tmp_path / "job").run()


def test_files_feed_an_input_of_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\1\2")
    b = pl.GraphBuilder("bytes")
    b.output("y", b.input("file", "uint8", ("n",)).cast(to="int32"))
    job = pl.Job(b.build(), str(tmp_path / "*.bin"), "jsonl", tmp_path / "job")
    job.run()
    (name,) = job.status().parts
    assert json.loads((job.folder / name).read_text())["y"] == [1, 2]


def write_shards(folder: Path) -> list[dict[str, Any]]:
    """Write two archives, and return their samples."""
    folder.mkdir()
    samples: list[dict[str, Any]] = []
    modes: dict[str, Any] = {"0.tar": "w:", "1.tar.gz": "w:gz"}
    for number, (file, mode) in enumerate(modes.items()):
        with tarfile.open(folder / file, mode) as shard:
            for name in (f"{n:03d}" for n in range(5)):
                files = {"txt": name.encode(), "seg.png": bytes([number]) * 600}
                for key, content in files.items():
                    member = tarfile.TarInfo(f"train/{name}.{key.upper()}")
                    member.size = len(content)
                    shard.addfile(member, BytesIO(content))
                    shard.addfile(tarfile.TarInfo("train/no ending"))
                samples.append({"__key__": f"train/{name}", **files})
    return samples


def test_samples_of_archives_are_read_from_any_position(tmp_path: Path) -> None:
    samples, pattern = write_shards(tmp_path / "a.b"), str(tmp_path / "a.b" / "*.tar*")
    for position in (0, 1, 5, 9, 10):
        assert list(pl.jobs.read_shards(pattern).open_at(position)) == samples[position:]
    assert list(to_source(tmp_path / "a.b" / "0.tar").open_at(3)) == samples[3:5]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of files left open
def test_samples_of_archives_are_those_of_webdataset(tmp_path: Path) -> None:
    samples = write_shards(tmp_path / "data")
    shards = [str(tmp_path / "data" / name) for name in ("0.tar", "1.tar.gz")]
    webdataset = pytest.importorskip("webdataset")
    found = webdataset.WebDataset(shards, shardshuffle=False, empty_check=False)
    assert samples == [{key: one[key] for key in samples[0]} for one in found]


def test_a_damaged_archive_ends_the_run_after_the_samples_before_it(tmp_path: Path) -> None:
    samples = write_shards(tmp_path / "data")
    damaged = tmp_path / "data" / "1.tar.gz"
    damaged.write_bytes(damaged.read_bytes()[:150])
    pipe = pl.pipeline(pl.step(lambda one: one["txt"].decode(), ordered=False), example=samples[0])
    source = pl.jobs.read_shards(str(tmp_path / "data" / "*"))
    job = pl.Job(pipe, source, "jsonl", tmp_path / "job", max_in_flight=1)
    with pytest.raises(pl.SourceError, match="the archive cannot be read: ReadError") as caught:
        job.run()
    assert caught.value.at == str(damaged)
    assert job.status().position >= 5
    (tmp_path / "text.tar").write_text("text")
    with pytest.raises(pl.SourceError, match="the archive cannot be read"):
        list(to_source(tmp_path / "text.tar").open_at(0))


def test_a_dataset_of_hugging_face_is_a_source(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset(TABLE).shuffle(seed=1)
    pipe = pl.pipeline(pl.step(lambda row: row["name"], ordered=False), example=data[0])
    job = pl.Job(pipe, data, "parquet", tmp_path, carry=["id"])
    assert job.run().total == 40
    table = ds.dataset(job.folder / "parts").to_table()
    assert table["id"].to_pylist() == data["id"][:]
    with pytest.raises(pl.JobError, match="the job's source changed"):
        pl.Job(pipe, data.shuffle(seed=2), "parquet", tmp_path, carry=["id"]).run()


def test_urls_are_read_by_fsspec(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    pq.write_table(TABLE, tmp_path / "all.parquet")
    for name, content in {
        "jobs/data/all.parquet": (tmp_path / "all.parquet").read_bytes(),
        "jobs/files/a.bin": b"aa",
        "jobs/files/b.bin": b"bb",
        "jobs/lines.jsonl": b"1\n2\n3\n",
    }.items():
        system.pipe(f"/{name}", content)
    assert list(to_source("memory://jobs/files").open_at(1)) == [b"bb"]
    assert list(to_source("memory://jobs/files/*.bin").open_at(0)) == [b"aa", b"bb"]
    assert list(to_source("memory://jobs/lines.jsonl").open_at(2)) == [3]
    for url in ("memory://jobs/data/all.parquet", "memory://jobs/data/*.parquet"):
        assert to_plain(to_source(url).open_at(38)) == TABLE.slice(38).to_pylist()


def test_what_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyarrow", "pyarrow.dataset", "fsspec", "fsspec.core"):
        monkeypatch.setitem(sys.modules, name, None)
    calls: list[Callable[[], object]] = [
        lambda: pl.Job("m.onnx", [], "parquet", "job"),
        lambda: pl.jobs.read_rows("data.parquet"),
        lambda: pl.jobs.read_files("s3://bucket/*.jpg"),
    ]
    for call in calls:
        with pytest.raises(pl.SourceError, match=r"pip install 'plait-dataflow\[jobs\]'"):
            call()


RESULTS: list[Any] = [
    {"score": np.float32(0.5), "box": np.arange(4, dtype="int16"), "tags": ["a"], "made": b"\0"},
    {"score": np.float32(1.5), "box": np.arange(2, dtype="int16"), "tags": [], "made": b"\1"},
    {"score": np.float32(2.5), "box": np.zeros(0, "int16"), "tags": ["b", "c"], "made": b""},
]


@pytest.mark.parametrize("every", [1, 2, 3])
def test_results_of_all_kinds_become_columns(tmp_path: Path, every: int) -> None:
    job = pl.Job(
        pl.pipeline(lambda n: RESULTS[n], example=0),
        range(3),
        "parquet",
        tmp_path,
        commit_items=every,
    )
    job.run()
    table = pq.read_table(job.folder / job.status().parts[0])
    assert [str(kind) for kind in table.schema.types] == [
        "int64",
        "float",
        "list<element: int16>",
        "list<element: string>",
        "binary",
    ]
    assert table.drop_columns("position").to_pylist() == to_plain(RESULTS)


def run_objects(folder: Path, results: list[Any], sink: Any, **options: Any) -> pl.Job:
    pipe = pl.pipeline(pl.step(lambda n: {"v": results[n]}, ordered=False), example=0)
    job = pl.Job(pipe, range(len(results)), sink, folder, **options)
    job.run()
    return job


def test_rows_of_the_first_part_widen_its_types(tmp_path: Path) -> None:
    run_objects(tmp_path / "a", [None, 1, 2.5, {}], "jsonl")
    job = run_objects(tmp_path / "b", [None, 1, 2.5], "parquet", commit_items=1)
    assert ds.dataset(job.folder / "parts").to_table()["v"].to_pylist() == [None, 1.0, 2.5]
    schema = pa.schema({"position": pa.int64(), "v": pa.float64()})
    job = run_objects(tmp_path / "e", [1, 2.5], pl.jobs.Parquet(schema), part_items=1)
    assert ds.dataset(job.folder / "parts").to_table()["v"].to_pylist() == [1.0, 2.5]


def test_a_result_that_cannot_be_written_fails_its_item(tmp_path: Path) -> None:
    for sink in ("jsonl", "parquet"):
        job = run_objects(tmp_path / sink, [1, object(), 3], sink)
        assert job.status().failed == 1
    assert run_objects(tmp_path / "npz", [1, None, 3], "npz").status().failed == 1
    with pytest.raises(pl.JobError, match="rows differ in names or shapes"):
        run_objects(tmp_path / "shapes", [[1], [1, 2]], "npz")


def test_dates_and_infinities_are_values_of_json(tmp_path: Path) -> None:
    job = run_objects(tmp_path, [date(2026, 1, 2), float("inf"), np.float32("nan")], "jsonl")
    text = (job.folder / job.status().parts[0]).read_text()
    assert [json.loads(line)["v"] for line in text.splitlines()] == ["2026-01-02", None, None]
