"""Rows of jobs that run together: the same files and errors as of rows that run alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from job_cases import read_lines
from plait.scheduler.bridges.listed_rows import ListedRows
from plait.scheduler.jobs.blocks import StackedRows


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note the number of rows of each block; rows take no time, as far as a job can tell."""
    found = list[int]()

    def note(kind: Any) -> None:
        join = kind.join

        def joined(self: Any) -> Any:
            found.append(len(self.rows))
            return join(self)

        monkeypatch.setattr(kind, "join", joined)

    note(ListedRows)
    note(StackedRows)
    monkeypatch.setattr("plait.scheduler.jobs.run.monotonic", lambda: 0.0)
    return found


def halve(number: int) -> float:
    if number % 50 == 7:
        raise ValueError(f"{number} is odd")
    return number / 2


def describe(half: float) -> dict[str, Any]:
    if half == 30.0:
        raise LookupError
    return {"half": half, "list": [half] * int(half % 3)}


def read_files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (folder / "parts").iterdir()}


def test_functions_are_called_once_for_each_row_of_growing_blocks(
    tmp_path: Path, sizes: list[int]
) -> None:
    called = list[int]()

    def check(number: int) -> float:
        called.append(number)
        return halve(number)

    steps = pl.step(check, ordered=False), describe
    job = pl.Job(pl.pipeline(*steps, example=2), range(200), "jsonl", tmp_path, part_items=80)
    called.clear()
    assert job.run().failed == 5
    assert sorted(called) == [*range(200)]
    assert sizes[0] == 1
    assert 4 < max(sizes) <= 80
    good = [n for n in range(200) if n % 50 != 7 and n != 60]
    assert read_lines(job) == [{"position": n, **describe(n / 2)} for n in good]
    errors = read_lines(job, job.status().errors)
    assert [one["position"] for one in errors] == [7, 57, 60, 107, 157]
    assert {one["kind"] for one in errors} == {"KernelError"}
    assert "ValueError: 57 is odd" in errors[1]["error"]
    assert "node 'check': pipeline.check" in errors[1]["at"]
    assert "in halve" in errors[1]["traceback"]
    assert "node 'describe'" in errors[2]["at"]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_blocks_do_not_change_the_files(tmp_path: Path, kind: str, sizes: list[int]) -> None:
    contents = []
    for index, options in enumerate([{}, {"commit_items": 1}, {"max_in_flight": 99}]):
        pipe = pl.pipeline(halve, describe, example=2)
        given: dict[str, Any] = {"part_items": 33, **options}
        sizes.clear()
        pl.Job(pipe, range(300), kind, tmp_path / str(index), **given).run()
        contents.append(read_files(tmp_path / str(index)))
        assert (max(sizes) == 1) == ("commit_items" in options)
    assert contents[0] == contents[1] == contents[2]


@pytest.mark.parametrize("most", [2, 24])
def test_no_more_rows_are_read_than_may_be_in_flight(
    tmp_path: Path, most: int, sizes: list[int]
) -> None:
    done, ahead = [0], list[int]()

    def read(position: int) -> Iterator[int]:
        for number in range(position, 300):
            ahead.append(number - done[0])
            yield number

    job = pl.Job(pl.pipeline(halve, example=2), read, "jsonl", tmp_path, max_in_flight=most)
    job.run(progress=lambda number: done.__setitem__(0, number))
    assert max(ahead) <= most
    assert sum(sizes) == 300


def test_an_async_function_and_one_with_effects_get_single_items(
    tmp_path: Path, sizes: list[int]
) -> None:
    async def wait(number: int) -> int:
        return number

    for name, target in (("async", wait), ("ordered", pl.step(halve, ordered=False))):
        pipe = pl.pipeline(target, example=2)
        pl.Job(pipe, range(20), "jsonl", tmp_path / name).run()
        assert bool(sizes) == (name != "async")


def make_network() -> pl.Plan:
    b = pl.GraphBuilder("network")
    x = b.input("x", "float32", ("rows", 2))
    b.output("y", x * 2.0)
    b.output("sum", x.sum(1))
    return pl.plan(b.build(), bounds={"rows": 8})


def test_rows_are_stacked_and_faulty_ones_fail_alone(tmp_path: Path, sizes: list[int]) -> None:
    lists: list[Any] = [[float(n), 1.0] for n in range(60)]
    lists[20], lists[30], lists[59] = None, [1.0], [1.0, None]
    table = pa.table({"x": pa.array(lists, pa.list_(pa.float32())), "id": range(100, 160)})
    pq.write_table(table, tmp_path / "rows.parquet")
    source = tmp_path / "rows.parquet"
    for index, options in enumerate([{"batch": 8}, {"batch": 8, "commit_items": 1}, {}]):
        sizes.clear()
        given: dict[str, Any] = {"part_items": 25, "carry": "id", **options}
        job = pl.Job(make_network(), source, "parquet", tmp_path / str(index), **given)
        assert job.run().failed == 2
        errors = read_lines(job, job.status().errors)
        assert [one["position"] for one in errors] == [20, 30]
        assert (max(sizes, default=0) == 8) == ("batch" in options)
    assert read_files(tmp_path / "0") == read_files(tmp_path / "1") == read_files(tmp_path / "2")
    rows = ds.dataset(tmp_path / "0" / "parts").to_table().to_pylist()[:59]
    good = [n for n in range(59) if n not in (20, 30)]
    assert rows[:-1] == [
        {"position": n, "id": 100 + n, "y": [[2.0 * n, 2.0]], "sum": [n + 1.0]} for n in good
    ]


def test_a_source_may_use_its_array_again(tmp_path: Path) -> None:
    def read(position: int) -> Iterator[Any]:
        array = np.zeros((1, 2), "float32")
        for number in range(position, 40):
            array[...] = number
            yield {"x": array}

    job = pl.Job(make_network(), read, "jsonl", tmp_path, batch=8)
    job.run()
    assert [row["y"] for row in read_lines(job)] == [[[2.0 * n] * 2] for n in range(40)]


@pytest.mark.parametrize("dtype", ["float16", "float32", ">f4", "int8", "uint64", "bool"])
def test_columns_of_arrays_are_those_of_their_lists(dtype: str) -> None:
    chance, sink = np.random.default_rng(0), pl.jobs.Parquet()
    kind = pa.from_numpy_dtype(np.dtype(dtype).newbyteorder("="))
    for shapes in ([()] * 3, [(2,), (0,), (5,)], [(2, 3), (0, 4), (1, 0), (3, 1)], [(1, 2, 2)] * 2):
        arrays = [chance.integers(0, 2, shape).astype(dtype) for shape in shapes]
        blocks = list[Any]()
        sink.fit([sink.encode({"x": one}) for one in arrays], blocks, None, grows=True, fills=True)
        found = blocks[0]["x"].combine_chunks()
        expected = kind
        for _ in shapes[0]:
            expected = pa.list_(expected)
        assert found.equals(pa.array([one.tolist() for one in arrays], expected))


def test_an_item_that_waits_for_the_next_block_is_counted_once(tmp_path: Path) -> None:
    items = [{"x": np.full((3, 2), number, "float32")} for number in range(20)]
    job = pl.Job(make_network(), items, "jsonl", tmp_path, batch=8)  # two items, and room for rows
    assert job.run().bytes_in == 20 * 3 * 2 * 4
    assert [row["sum"] for row in read_lines(job)] == [[2.0 * n] * 3 for n in range(20)]
