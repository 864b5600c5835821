"""The options of ``plait stream``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import plait as pl
import pytest
from command_line import assert_mistake, plait


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    builder = pl.GraphBuilder("log")
    builder.output("y", builder.op("Neg", builder.input("x", "float32", ("n", 2))))
    pl.save(builder.build(), tmp_path / "neg.plait")
    items = tmp_path / "items"
    items.mkdir()
    for index in range(7):
        np.save(items / f"{index}.npy", np.full((1, 2), index, np.float32))
    return tmp_path


@pytest.mark.parametrize(
    "options",
    [
        ["--unordered"],
        ["--batch", "3"],
        ["--batch", "4", "--max-delay-ms", "1", "--max-in-flight", "2"],
        ["--deadline-ms", "60000", "--on-error", "stop"],
    ],
)
def test_each_item_gets_its_results_however_it_is_streamed(
    folder: Path, options: list[str]
) -> None:
    out = folder / "out"
    arguments = ("--input", "x=items", "--output", str(out), *options)
    result = plait(folder, "stream", "neg.plait", *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    for index in range(7):
        with np.load(out / f"{index:04d}.npz") as written:
            assert written["y"].tolist() == [[-index, -index]]


def test_batches_are_told_of(folder: Path) -> None:
    arguments = ("--input", "x=items", "--batch", "2", "--max-in-flight", "3")
    result = plait(folder, "stream", "neg.plait", *arguments)
    assert result.stdout.endswith("up to 3 batches of 2 in flight\n")


def test_a_stream_can_end_with_the_first_failure(folder: Path) -> None:
    (folder / "items" / "3.npy").write_bytes(b"damaged")
    result = plait(
        folder, "stream", "neg.plait", "--input", "x=items", "--on-error", "stop", "--json"
    )
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["done"] <= 3) == (1, True)
    assert [failure["item"] for failure in answer["failures"]] == [3]


def test_items_that_take_too_long_fail(folder: Path) -> None:
    arguments = ("--input", "x=items", "--deadline-ms", "0.001", "--json")
    answer = json.loads(plait(folder, "stream", "neg.plait", *arguments).stdout)
    assert len(answer["failures"]) == 7
    assert "not done within" in answer["failures"][0]["error"]


def test_a_delay_without_batches_is_a_mistake(folder: Path) -> None:
    arguments = ("--input", "x=items", "--max-delay-ms", "5")
    assert_mistake(plait(folder, "stream", "neg.plait", *arguments), "max_delay_s is 0.005")


def test_items_that_are_not_kept_are_counted(folder: Path) -> None:
    arguments = ("--input", "x=items", "--keep", "1", "--drop", "newest", "--json")
    answer = json.loads(plait(folder, "stream", "neg.plait", *arguments).stdout)
    assert answer["done"] + answer["dropped"] == 7
    assert answer["failures"] == []


def test_what_is_kept_is_a_number_or_the_latest(folder: Path) -> None:
    arguments = ("--input", "x=items", "--keep", "some")
    assert_mistake(plait(folder, "stream", "neg.plait", *arguments), "--keep is 'some'")
    result = plait(folder, "stream", "neg.plait", *arguments[:-1], "latest")
    assert (result.exit_code, "items/s" in result.stdout) == (0, True)


def test_each_value_of_an_input_has_a_state(folder: Path) -> None:
    b = pl.GraphBuilder("counts")
    user = b.input("user", "int64", ())
    count = b.variable("count", np.int64(0))
    b.output("count_now", count.assign(b.after(count + 1, user)))
    pl.save(b.build(), folder / "counts.plait")
    users = folder / "users"
    users.mkdir()
    for index in range(6):
        np.save(users / f"{index}.npy", np.int64(index % 2))
    arguments = ("--input", "user=users", "--output", "out", "--key", "user")
    assert plait(folder, "stream", "counts.plait", *arguments).exit_code == 0
    found = [np.load(folder / "out" / f"{index:04d}.npz")["count_now"] for index in range(6)]
    assert found == [1, 1, 2, 2, 3, 3]
