"""Jobs by shard in this process; hosts run them in tests/ray."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import killed_job
import plait as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from job_cases import TEXTS, make_pipe, make_sum, read_lines

FILES, LENGTHS = 3, (5, 0, 7)


def write_lines(folder: Path) -> str:
    """Write files of several lengths, one of them empty; return a pattern."""
    for number, length in enumerate(LENGTHS):
        lines = (json.dumps(f"{number} {item}") for item in range(length))
        (folder / f"{number}.jsonl").write_text("\n".join(lines))
    return str(folder / "*.jsonl")


def test_parts_and_errors_are_those_of_a_job_in_order(tmp_path: Path) -> None:
    plan, found = pl.plan(killed_job.make_plan("stateless").graph), []
    for order in ("item", "shard"):
        job = killed_job.make_job("stateless", plan, tmp_path / order, order=order)
        status = job.run()
        assert (status.position, status.total, status.failed) == (240, 240, 15)
        assert (status.is_done, str(job.run())) == (True, str(status))
        found.append(killed_job.read_files(job.folder))
    assert found[0] == found[1]
    assert status.shards == tuple(range(6))
    files = [*(job.folder / "parts").iterdir(), *(job.folder / "errors").iterdir()]
    assert status.bytes_out == sum(file.stat().st_size for file in files)  # no pieces


def test_files_of_unknown_length_are_shards_with_positions_of_their_own(tmp_path: Path) -> None:
    job = pl.Job(
        make_pipe(lambda text: {"text": text}),
        write_lines(tmp_path),
        "jsonl",
        tmp_path / "job",
        order="shard",
        part_items=4,
    )
    seen = list[int]()
    status = job.run(progress=seen.append)
    assert (seen, status.position, status.total, status.is_done) == ([5, 5, 12], 12, None, True)
    stride = 100_000_000
    assert [(row["position"], row["text"]) for row in read_lines(job)] == [
        (number * stride + item, f"{number} {item}")
        for number, length in enumerate(LENGTHS)
        for item in range(length)
    ]
    assert len(status.parts) == 4


def test_a_job_that_is_resumed_runs_the_shards_that_are_left(tmp_path: Path) -> None:
    called, is_broken = list[str](), True

    def note(text: str) -> dict[str, str]:
        called.append(text)
        if is_broken and text == "2 3":
            raise SystemError
        return {"text": text}

    def make() -> pl.Job:
        source, folder = write_lines(tmp_path), tmp_path / "job"
        return pl.Job(make_pipe(note), source, "jsonl", folder, order="shard", max_failed=0)

    with pytest.raises(pl.JobError, match="1 item failed, and max_failed is 0"):
        make().run()
    assert make().status().shards == (0, 1)
    called.clear()
    is_broken = False
    assert make().run().position == 12
    assert {*called} - {"a b"} == {f"2 {item}" for item in range(7)}


def test_failed_items_of_files_are_named_and_repaired(tmp_path: Path) -> None:
    faulty = {"0 4", "2 0", "2 6"}

    def check(text: str) -> dict[str, str]:
        if text in faulty:
            raise ValueError
        return {"text": text}

    pipe, folder = make_pipe(check), tmp_path / "job"
    job = pl.Job(pipe, write_lines(tmp_path), "jsonl", folder, order="shard", part_items=4)
    assert job.run().failed == 3
    items = [row["item"] for row in read_lines(job, job.status().errors)]
    assert items == [f"line {n} of {tmp_path}/{f}.jsonl" for f, n in ((0, 5), (2, 1), (2, 7))]
    faulty.remove("2 0")
    assert job.repair().failed == 2
    faulty.clear()
    assert job.repair().failed == 0
    assert sorted(row["text"] for row in read_lines(job)) == [
        f"{number} {item}" for number in (0, 2) for item in range(LENGTHS[number])
    ]
    assert job.run().is_done


def test_the_schema_of_the_first_part_holds_for_all(tmp_path: Path) -> None:
    values = [1, 2, None, None, 5, 6.5]
    for order in ("item", "shard"):
        pipe = make_pipe(lambda value: {"value": value}, 1)
        job = pl.Job(pipe, values[:5], "parquet", tmp_path / order, order=order, part_items=2)
        job.run()
        parts = [pq.read_schema(job.folder / name) for name in job.status().parts]
        assert {str(one.field("value").type) for one in parts} == {"int64"}


def test_rows_that_a_filter_leaves_and_samples_of_archives_are_sharded_by_file(
    tmp_path: Path,
) -> None:
    for number in range(FILES):
        table = {"n": range(10 * number, 10 * number + 10), "last": range(10)}
        pq.write_table(pa.table(table), tmp_path / f"{number}.parquet", row_group_size=4)
        with tarfile.open(tmp_path / f"{number}.tar", "w") as archive:
            for name in (f"{number}a.txt", f"{number}b.txt"):
                member = tarfile.TarInfo(name)
                member.size = 1
                archive.addfile(member, io.BytesIO(b"x"))
    rows = pl.jobs.read_rows(f"{tmp_path}/*.parquet", filter=ds.field("last") > 6)
    numbers = make_pipe(lambda row: {"n": row["n"]}, {"n": 1})
    job = pl.Job(numbers, rows, "jsonl", tmp_path / "rows", order="shard")
    assert job.run().shards == (0, 1, 2)
    assert [row["n"] for row in read_lines(job)] == [7, 8, 9, 17, 18, 19, 27, 28, 29]
    keys = make_pipe(lambda sample: sample["__key__"], {"__key__": "a"})
    job = pl.Job(keys, f"{tmp_path}/*.tar", "jsonl", tmp_path / "keys", order="shard")
    assert job.run().shards == (0, 1, 2)
    assert [row["result"] for row in read_lines(job)] == ["0a", "0b", "1a", "1b", "2a", "2b"]


def test_an_error_of_the_source_fails_its_shard_as_a_whole(tmp_path: Path) -> None:
    is_broken = True

    def read(position: int) -> Iterator[str]:
        for number in range(position, 20):
            if is_broken and number == 13:
                raise ConnectionError("the server is away")
            yield str(number)

    source = pl.jobs.JobSource(read, 20)
    job = pl.Job(make_pipe(), source, "jsonl", tmp_path, order="shard", part_items=5)
    with pytest.raises(ConnectionError):
        job.run()
    assert (job.status().position, job.status().shards) == (10, (0, 1))
    is_broken = False
    assert job.run().position == 20
    assert [row["text"] for row in read_lines(job)] == [str(number) for number in range(20)]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"source": lambda position: iter(())}, "the source has no shards"),
        ({"order": "file"}, "order is 'file'"),
        ({"order": "item", "replicas": {"n": 2}}, "replicas= says how many hosts"),
    ],
)
def test_mistakes_are_refused(tmp_path: Path, changes: dict[str, Any], what: str) -> None:
    given = {"source": TEXTS, "sink": "jsonl", "folder": tmp_path / "job", "order": "shard"}
    with pytest.raises(pl.PlaitError, match=what):
        pl.Job(make_pipe(), **{**given, **changes})
    assert not (tmp_path / "job").exists()


def test_variables_and_functions_on_hosts_are_refused(tmp_path: Path) -> None:
    job = pl.Job(make_sum(), [{"x": 1}], "jsonl", tmp_path, order="shard", key="x")
    with pytest.raises(pl.JobError, match="each shard would have its own"):
        job.run()
    job = pl.Job(make_pipe(), TEXTS, print, tmp_path, order="shard", cluster=object())
    with pytest.raises(pl.JobError, match="a function of this process"):
        job.run()


@pytest.mark.parametrize("orders", [("item", "shard"), ("shard", "item")])
def test_another_order_is_refused_in_any_case(tmp_path: Path, orders: tuple[Any, Any]) -> None:
    pl.Job(make_pipe(), TEXTS, "jsonl", tmp_path, order=orders[0]).run()
    job = pl.Job(make_pipe(), TEXTS, "jsonl", tmp_path, order=orders[1], accept_changes=True)
    with pytest.raises(pl.JobError, match="the job's shards changed"):
        job.run()


def test_other_items_are_refused_since_shards_have_numbers(tmp_path: Path) -> None:
    source = write_lines(tmp_path)
    pl.Job(make_pipe(), source, "jsonl", tmp_path / "job", order="shard").run()
    (tmp_path / "00.jsonl").write_text('"new"')
    job = pl.Job(make_pipe(), source, "jsonl", tmp_path / "job", order="shard")
    with pytest.raises(pl.JobError, match="the job's shards changed"):
        job.run()
