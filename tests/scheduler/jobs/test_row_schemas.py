"""Rows that do not fit the columns of a job fail alone, wherever it commits or stops."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import killed_job
import numpy as np
import pandas
import plait as pl
import polars
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from job_cases import make_pipe, read_lines
from plait.scheduler.jobs import columns
from plait.scheduler.jobs.folders import write_file

VALUES: list[Any] = [
    None,
    1,
    2,
    2**60,
    0.5,
    True,
    "text",
    b"\xff",
    [1],
    [0.5, None],
    [],
    [["a"]],
    {"a": 1},
]
VALUES += [{"a": None}, {"a": 0.5, "b": [1]}, {}, np.float32(0.5), np.ones(2, "int8"), 2**64]


def run(folder: Path, rows: Sequence[Any], sink: Any = "parquet", **options: Any) -> pl.Job:
    def get(number: int) -> Any:
        if rows[number] is None:
            raise ValueError("no row")
        return rows[number]

    job = pl.Job(make_pipe(get, 0), range(len(rows)), sink, folder, **options)
    job.run()
    return job


def read(job: pl.Job) -> list[Any]:
    kind = Path(job.status().parts[0]).suffix[1:]
    return list(ds.dataset(job.folder / "parts", format=kind).to_table().to_pylist())


def read_errors(job: pl.Job) -> dict[int, str]:
    return {one["position"]: one["error"] for one in read_lines(job, job.status().errors)}


def read_all(job: pl.Job) -> Any:
    """Return digests of parts, and errors in order; those of functions name the way of the call."""
    files = killed_job.read_files(job.folder)
    errors = [(n, "" if "no row" in text else text) for n, text in read_errors(job).items()]
    return {name: one for name, one in files.items() if name.startswith("parts")}, errors


def make_rows(seed: int) -> list[Any]:
    """Return rows with a column of few kinds of values, and one of any; some lack one or fail."""
    chance = random.Random(seed)
    usual = [None, *chance.sample(VALUES, 2)]
    rows = [{"a": chance.choice(usual), "b": chance.choice(VALUES)} for _ in range(24)]
    for row in rows:
        row["b"] = chance.choice([None, row["a"], row["b"]])
        for name in chance.sample("ab", chance.choice([0, 0, 1])):
            del row[name]
        if not chance.randrange(8):
            row["c"] = chance.choice([None, 1])
    return rows[:1] + [row if chance.randrange(8) else None for row in rows[1:]]


def is_kept(value: Any, found: Any) -> bool:
    """Return whether `found` is `value`, with null for keys that it lacks."""
    if isinstance(value, dict) and isinstance(found, dict):
        return value.keys() <= found.keys() and all(is_kept(value.get(k), found[k]) for k in found)
    if isinstance(value, list) and isinstance(found, list):
        return len(value) == len(found) and all(map(is_kept, value, found))
    found = found.encode() if isinstance(value, bytes) and isinstance(found, str) else found
    value = value.encode() if isinstance(found, bytes) and isinstance(value, str) else value
    return bool(value == found) and (value is None) == (found is None)


@pytest.mark.parametrize(("seed", "sink"), [*enumerate(["parquet", "arrow"] * 3)])
def test_rows_that_fit_are_the_same_wherever_a_job_commits_or_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, sink: str
) -> None:
    rows, chance, fsync, left = make_rows(seed), random.Random(seed), os.fsync, 0

    def fill(file: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(file)

    monkeypatch.setattr("os.fsync", fill)
    calm = run(tmp_path / "calm", rows, sink, part_items=8)
    each = run(tmp_path / "each", rows, sink, part_items=8, commit_items=1)
    for moment in (*(chance.randrange(1, 18) for _ in range(5)), 0):
        left = moment
        with suppress(pl.JobError):
            job = run(tmp_path / "full", rows, sink, part_items=8, commit_items=3)
    assert read_all(each) == read_all(calm)
    assert read_all(job) == read_all(calm)
    found, errors = {row.pop("position"): row for row in read(job)}, read_errors(job)
    assert sorted([*found, *errors]) == list(range(24))
    assert list(errors) == sorted(errors)
    assert job.status().failed == len(errors)
    for number, row in found.items():
        given = {k: v.tolist() if hasattr(v, "dtype") else v for k, v in rows[number].items()}
        assert is_kept({name: given.get(name) for name in row}, row)


def make_value(chance: random.Random, depth: int) -> Any:
    kind = chance.randrange(8 if depth else 6)
    if kind < 6:
        return (None, 1, 2**70, 0.5, b"\xff", chance.choice(["a", True]))[kind]
    values = [make_value(chance, depth - 1) for _ in range(chance.randrange(4))]
    return values if kind == 6 else dict(zip(chance.sample("abc", 3), values, strict=False))


def test_values_of_one_kind_have_one_type() -> None:
    chance, types = random.Random(0), dict[Any, set[str]]()
    for value in (make_value(chance, 3) for _ in range(4000)):
        try:
            found = str(pa.infer_type([value]))
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            found = "none"
        types.setdefault(columns._get_kind(value), set()).add(found)
    assert len(types) > 400
    assert {len(one) for one in types.values()} == {1}


def find_misfits(values: list[Any], part_items: int) -> list[int]:
    """Return the numbers of scalars that do not fit a column, by the rules of docs/jobs.md."""
    kind: Any = None
    misfits = list[int]()
    for number, value in enumerate(values):
        kinds = {kind, type(value)} - {type(None), None}
        if len(kinds) <= 1:
            kind = next(iter(kinds), None)
        elif kinds == {int, float} and number < part_items:
            kind = float
        elif kinds != {int, float} or value != kind(value):
            misfits.append(number)
    return misfits


@pytest.mark.parametrize("seed", range(5))
def test_scalars_that_do_not_fit_are_failed_items(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    some = [None, *chance.sample([1, 2.0, 2.5, True, "text"], 3)]
    values = chance.choices(some, [8, 1, 1, 1], k=40)
    job = run(tmp_path, [{"v": one} for one in values], part_items=10)
    misfits = find_misfits(values, 10)
    assert list(read_errors(job)) == misfits
    kept = [n for n in range(40) if n not in misfits]
    assert read(job) == [{"position": n, "v": values[n]} for n in kept]


def test_an_error_names_the_column_the_type_and_the_way_out(tmp_path: Path) -> None:
    rows = [{"v": 1, "t": {"a": 1}}] * 7
    rows[3:] = [{"v": "x"}, {"v": 2.5}, {"v": 1, "w": 0}, {"t": {"b": 1}}]
    with pytest.raises(pl.JobError, match="4 items failed"):
        run(tmp_path / "stopped", rows, part_items=3, max_failed=3)
    job = run(tmp_path / "job", rows, part_items=3)
    errors = read_errors(job)
    for number, what in (
        (3, "'v' is a column of int64, and the row has 'x' of type str\n"),
        (4, "'v' is a column of int64, and the row has 2.5 of type float: "),
        (5, "'w' is not a column of the parts, and the row has 0 of type int\n"),
        (6, "'t' is a column of struct<a: int64>, and the row has {'b': 1} of type dict: "),
    ):
        assert errors[number].startswith(what)
        assert f"at:  item {number}\n" in errors[number]
        assert "Parquet(schema=...)" in errors[number]
    kind = pa.struct({"a": pa.int64(), "b": pa.int64()})
    schema = pa.schema({"position": pa.int64(), "w": pa.int8(), "v": pa.float64(), "t": kind})
    sink, source = pl.jobs.Parquet(schema), range(len(rows))
    job = pl.Job(make_pipe(lambda n: rows[n], 0), source, sink, job.folder, accept_changes=True)
    assert job.run().failed == 4
    assert job.repair().failed == 1
    assert list(read_errors(job)) == [3]
    assert read(job)[3:] == [
        {"position": 4, "w": None, "v": 2.5, "t": None},
        {"position": 5, "w": 0, "v": 1, "t": None},
        {"position": 6, "w": None, "v": None, "t": {"a": None, "b": 1}},
    ]
    assert read(job)[0] == {"position": 0, "w": None, "v": 1, "t": {"a": 1, "b": None}}


@pytest.mark.parametrize("commit_items", [1, 3])
def test_integers_that_floats_lack_keep_their_column(tmp_path: Path, commit_items: int) -> None:
    job = run(tmp_path, [{"v": 2**60}, {"v": 0.5}, {"v": 1}], commit_items=commit_items)
    assert list(read_errors(job)) == [1]
    assert [row["v"] for row in read(job)] == [2**60, 1]


def test_a_run_that_ends_while_files_are_written_again_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, left = [{"v": n if n > 6 else None} for n in range(8)], -1

    def fail(path: Path, *arguments: Any, **options: Any) -> None:
        nonlocal left
        left -= path.exists() and path.suffix == ".parquet"
        if left == 0:
            raise pl.JobError("the disk is full")
        write_file(path, *arguments, **options)

    monkeypatch.setattr("plait.scheduler.jobs.commits.write_file", fail)
    calm = run(tmp_path / "calm", rows, part_items=2)
    for moment in (1, 2, 3):
        left = moment
        with pytest.raises(pl.JobError, match="the disk is full"):
            run(tmp_path / str(moment), rows, part_items=2)
        job = run(tmp_path / str(moment), rows, part_items=2)
        assert killed_job.read_files(job.folder) == killed_job.read_files(calm.folder)


@pytest.mark.parametrize("order", ["item", "shard"])
def test_a_column_gets_its_type_with_the_first_value(tmp_path: Path, order: Any) -> None:
    rows = [{"v": None if n < 9 else n, "tags": [["a"]] if n == 14 else []} for n in range(20)]
    job = run(tmp_path, rows, part_items=4, order=order)
    if order == "shard":  # each is written on its own
        assert list(read_errors(job)) == list(range(9, 20))
        assert job.repair().failed == 0
    expected = [{"position": n, **row} for n, row in enumerate(rows)]
    assert read(job) == expected
    kinds = {pq.read_schema(job.folder / name).remove_metadata() for name in job.status().parts}
    assert len(kinds) == 1
    table = polars.read_parquet(job.folder / "parts" / "*.parquet")
    assert table.sort("position").to_dicts() == expected
    assert pandas.read_parquet(job.folder / "parts")["v"].isna().sum() == 9
