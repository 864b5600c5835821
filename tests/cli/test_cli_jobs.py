"""``plait job``: run, resume, status and repair."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from command_line import assert_mistake, plait


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    b = pl.GraphBuilder("model")
    b.output("y", b.input("x", "float32", (1, 2)) * 2.0)
    pl.save(b.build(), tmp_path / "model.plait")
    write_rows(tmp_path, [[n, 1] for n in range(7)])
    (tmp_path / "elsewhere").mkdir()
    return tmp_path


def write_rows(folder: Path, rows: list[Any]) -> None:
    lines = [json.dumps({"id": number, "x": [row]}) for number, row in enumerate(rows)]
    (folder / "rows.jsonl").write_text("\n".join(lines))


RUN = "job", "run", "model.plait", "--source", "rows.jsonl", "--sink", "jsonl", "--folder", "out"


def read_rows(folder: Path) -> list[dict[str, Any]]:
    found = json.loads(plait(folder, "job", "status", "out", "--json").stdout)
    return [
        json.loads(line)
        for name in found["parts"]
        for line in (folder / "out" / name).read_text().splitlines()
    ]


def test_a_job_is_run_and_its_status_shown(folder: Path) -> None:
    ran = plait(folder, *RUN, "--commit-items", "2", "--part-items", "4", "--max-in-flight", "2")
    assert (ran.exit_code, ran.stderr) == (0, "")
    assert ran.stdout.startswith("done: 7 items, ")
    assert read_rows(folder) == [{"position": n, "y": [[2 * n, 2]]} for n in range(7)]
    assert plait(folder, "job", "status", "out").stdout == ran.stdout


def test_a_job_by_shard_is_resumed_in_its_order(folder: Path) -> None:
    ran = plait(folder, *RUN, "--order", "shard", "--part-items", "4")
    assert (ran.exit_code, ran.stderr) == (0, "")
    assert len(read_rows(folder)) == 7
    assert plait(folder / "elsewhere", "job", "resume", "../out").stdout == ran.stdout
    assert_mistake(plait(folder, *RUN, "--part-items", "4"), "the job's shards changed")
    assert_mistake(plait(folder, *RUN, "--replicas", "2"), "none is named")


def test_a_job_is_resumed_by_its_folder_from_anywhere(folder: Path) -> None:
    plait(folder, *RUN, "--batch", "1", "--carry", "id")
    write_rows(folder, [[n, 1] for n in range(9)])
    ran = plait(folder / "elsewhere", "job", "resume", "../out")
    assert (ran.exit_code, ran.stderr) == (0, "")
    assert read_rows(folder) == [{"position": n, "id": n, "y": [[2 * n, 2]]} for n in range(9)]


def test_a_log_gets_the_status_now_and_then(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.cli.job.LOG_S", 0.0)
    ran = plait(folder, *RUN, "--commit-items", "1")
    lines = ran.stderr.splitlines()
    assert len(lines) == 7
    assert lines[3].startswith("note: running: 4 items, ")
    assert " bytes in, " in lines[3]


def test_a_changed_model_is_refused_and_can_be_accepted(folder: Path) -> None:
    plait(folder, *RUN)
    b = pl.GraphBuilder("model")
    b.output("y", b.input("x", "float32", (1, 2)) * 3.0)
    pl.save(b.build(), folder / "model.plait")
    assert_mistake(plait(folder, "job", "resume", "out"), "the job's model changed")
    write_rows(folder, [[n, 1] for n in range(9)])
    ran = plait(folder, "job", "resume", "out", "--accept-changes")
    assert (ran.exit_code, ran.stderr) == (0, "")
    assert read_rows(folder)[-1] == {"position": 8, "y": [[24, 3]]}
    plait(folder, *RUN, "--accept-changes")
    b = pl.GraphBuilder("model")
    b.output("y", b.input("x", "float32", (1, 2)) * 4.0)
    pl.save(b.build(), folder / "model.plait")
    assert_mistake(plait(folder, "job", "resume", "out"), "the job's model changed")


def test_failed_items_are_repaired(folder: Path) -> None:
    write_rows(folder, [[0, 1], [1], [2, 1]])
    ran = plait(folder, *RUN)
    assert ran.exit_code == 1
    assert "item 1: input 'x' must be float32[1, 2], got shape [1, 1]" in ran.stderr
    assert f"all errors are in {Path('out', 'errors')}" in ran.stderr
    assert ran.stdout.startswith("done: 3 items, 1 failed, ")
    write_rows(folder, [[0, 1], [1, 1], [2, 1]])
    ran = plait(folder / "elsewhere", "job", "repair", "../out")
    assert (ran.exit_code, ran.stderr) == (0, "")
    assert {row["position"] for row in read_rows(folder)} == {0, 1, 2}


def test_folders_without_a_job_or_with_one_of_python_are_mistakes(folder: Path) -> None:
    for action in ("resume", "repair", "status"):
        assert_mistake(plait(folder, "job", action, "elsewhere"), "elsewhere has no job")
    items = [{"x": np.ones((1, 2), "float32")}]
    pl.Job(folder / "model.plait", items, "jsonl", folder / "out").run()
    assert_mistake(plait(folder, "job", "resume", "out"), "was not begun by plait job run")


def test_help_lists_the_commands(folder: Path) -> None:
    shown = plait(folder, "job", "--help").stdout
    assert all(f"\n  {name} " in shown for name in ("run", "resume", "status", "repair"))
    assert "--source" in plait(folder, "job", "run", "--help").stdout


def test_a_queue_is_run_to_files_of_items_and_drained_again(folder: Path) -> None:
    queue = pl.jobs.Queue(folder / "rows.sqlite")
    queue.put({"id": "a", "x": [[1, 2]]}, {"id": "b", "x": [[3, 4]]})
    options = "--source", "rows.sqlite", "--sink", "files/{id}.json", "--carry", "id"
    ran = plait(folder, "job", "run", "model.plait", *options, "--folder", "out")
    assert (ran.exit_code, ran.stderr) == (0, "")
    queue.put({"id": "../c", "x": [[5, 6]]}, {"id": "d", "x": [[7, 8]]})
    ran = plait(folder / "elsewhere", "job", "resume", "../out")
    assert ran.exit_code == 1
    assert "note: item 2: '../c' cannot be part of a file's name" in ran.stderr
    found = {path.name: json.loads(path.read_text()) for path in (folder / "files").iterdir()}
    assert sorted(found) == ["a.json", "b.json", "d.json"]
    assert found["d.json"] == {"position": 3, "id": "d", "y": [[14, 16]]}


def test_a_folder_may_be_a_url(folder: Path) -> None:
    memory = pytest.importorskip("fsspec").filesystem("memory")
    pytest.importorskip("upath")
    memory.store.clear()
    assert plait(folder, *RUN[:-1], "memory://bucket/out").exit_code == 0
    write_rows(folder, [[n, 1] for n in range(9)])
    assert plait(folder, "job", "resume", "memory://bucket/out").stdout.startswith("done: 9 items")
    shown = plait(folder, "job", "status", "memory://bucket/out", "--json").stdout
    assert json.loads(shown)["position"] == 9
    memory.store.clear()
