"""Jobs that drain a queue of SQLite."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from job_cases import make_pipe, read_lines
from patience import WAIT_S

PRODUCE = """
import sys
import plait as pl

queue = pl.jobs.Queue(sys.argv[1])
for number in range(int(sys.argv[3])):
    queue.put(f"{sys.argv[2]} {number}", f"{sys.argv[2]} {number} again")
"""


def test_items_of_several_producers_are_done_exactly_once(tmp_path: Path) -> None:
    file, count = str(tmp_path / "items.sqlite"), 40
    pl.jobs.Queue(file)
    producers = [
        subprocess.Popen([sys.executable, "-c", PRODUCE, file, name, str(count)]) for name in "abc"
    ]
    job = pl.Job(make_pipe(), file, "jsonl", tmp_path / "job", part_items=50, commit_items=7)
    try:
        while any(one.poll() is None for one in producers):
            job.run()
    finally:
        assert [one.wait(WAIT_S) for one in producers] == [0, 0, 0]
    assert job.run().position == 6 * count
    texts = [row["text"] for row in read_lines(job)]
    endings = ["", " again"]
    assert Counter(texts) == Counter(
        f"{name} {number}{ending}"
        for name in "abc"
        for number in range(count)
        for ending in endings
    )
    assert [text for text in texts if text[0] == "b"] == [
        f"b {number}{ending}" for number in range(count) for ending in endings
    ]


def test_a_queue_keeps_values_of_json(tmp_path: Path) -> None:
    queue = pl.jobs.Queue(tmp_path / "items.sqlite")
    values: list[Any] = [None, "text", 2.5, [1, {"a": True}], "\0é"]
    queue.put(*values, np.arange(3), np.float32(0.5))
    assert list(queue.open_at(0)) == [*values, [0, 1, 2], 0.5]
    queue.put()
    assert list(queue.open_at(6)) == [0.5]
    for unfit in ({1j}, object(), "\ud800"):
        with pytest.raises(pl.SourceError, match="the queue cannot be used"):
            queue.put("good", unfit)
    assert list(queue.open_at(7)) == []


def test_a_damaged_item_fails_alone(tmp_path: Path) -> None:
    file = tmp_path / "items.sqlite"
    queue = pl.jobs.Queue(file)
    with closing(sqlite3.connect(file)) as opened, opened:
        opened.executemany("INSERT INTO items (item) VALUES (?)", [("{",), (None,), ('"text"',)])
    job = pl.Job(make_pipe(), queue, "jsonl", tmp_path / "job")
    assert job.run().failed == 2
    assert read_lines(job) == [{"position": 2, "words": 1, "text": "text"}]


def test_done_items_may_be_deleted_and_missing_ones_are_named(tmp_path: Path) -> None:
    file = tmp_path / "items.sqlite"
    queue = pl.jobs.Queue(file)
    queue.put(*(f"text {n}" for n in range(10)))
    job = pl.Job(make_pipe(), queue, "jsonl", tmp_path / "job")
    position = job.run().position
    with closing(sqlite3.connect(file)) as opened, opened:
        opened.execute("DELETE FROM items WHERE id <= ?", (position,))
    queue.put("one more")
    assert job.run().position == 11
    assert read_lines(job)[-1] == {"position": 10, "words": 2, "text": "one more"}
    with pytest.raises(pl.SourceError, match="item 0 was deleted from the queue"):
        pl.Job(make_pipe(), queue, "jsonl", tmp_path / "other").run()


@pytest.mark.parametrize("content", [b"text" * 2000, None])
def test_another_file_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "items.sqlite"
    if content is None:
        file.mkdir()
        file = file / "none" / "items.sqlite"
    else:
        file.write_bytes(content)
    with pytest.raises(pl.SourceError, match="the queue cannot be used"):
        pl.jobs.Queue(file)
    with pytest.raises(pl.SourceError, match="there is no file"):
        pl.Job(make_pipe(), str(tmp_path / "none.sqlite"), "jsonl", tmp_path / "job")
