"""The command line, and examples, on a real cluster."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import plait as pl
import pytest
from command_line import assert_mistake, plait

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    b = pl.GraphBuilder("two steps")
    h = b.op("Relu", b.input("x", "float32", ("n",)), name="first")
    b.output("y", b.op("Neg", h, name="second"))
    pl.save(b.build(), tmp_path / "model.plait")
    (tmp_path / "items").mkdir()
    for number in range(12):
        np.save(tmp_path / "items" / f"{number:02}.npy", np.full(3, number, np.float32))
    return tmp_path


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the examples find each other, here and on hosts."""
    monkeypatch.syspath_prepend(str(EXAMPLES))


def example(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_commands_take_devices_of_hosts(folder: Path) -> None:
    devices = ("--devices", "ray:find/cpu,cpu", "--ray", "auto")
    pins = ("--pin", "first=ray:find/cpu", "--pin", "second=cpu")
    answer = plait(folder, "stream", "model.plait", "--input", "x=items", *devices, *pins, "--json")
    assert (answer.exit_code, answer.stderr) == (0, "")
    assert json.loads(answer.stdout)["done"] == 12
    report = plait(folder, "plan", "model.plait", "--shape", "x=3", *devices, *pins)
    assert "ray:find/cpu" in report.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_job_runs_by_shard_on_hosts(folder: Path) -> None:
    lines = (json.dumps({"x": [number, -number]}) for number in range(12))
    (folder / "rows.jsonl").write_text("\n".join(lines))
    source = "--source", "rows.jsonl", "--sink", "jsonl", "--folder", "out"
    hosts = "--order", "shard", "--ray", "auto", "--replicas", "1", "--bound", "n=2"
    answer = plait(folder, "job", "run", "model.plait", *source, *hosts)
    assert (answer.exit_code, answer.stderr) == (0, "")
    assert answer.stdout.startswith("done: 12 items, ")
    (part,) = (folder / "out" / "parts").iterdir()
    rows = [json.loads(line)["y"] for line in part.read_text().splitlines()]
    assert rows == [[-number, 0] for number in range(12)]


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_devices_of_all_nodes_are_shown(folder: Path) -> None:
    answer = plait(folder, "devices", "ray:read/cpu", "--ray", "auto", "--json")
    (status,) = json.loads(answer.stdout)
    assert (status["name"], status["found"]) == ("ray:read/cpu", True)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_commands_deal_items_to_replicas(folder: Path) -> None:
    options = ("--ray", "auto", "--replicas", "1..2", "--output", "out", "--input", "x=items")
    answer = plait(folder, "stream", "model.plait", *options)
    assert (answer.exit_code, answer.stderr) == (0, "")
    assert answer.stdout.strip().endswith("in flight on each replica")
    for number in range(12):
        with np.load(folder / "out" / f"{number:04}.npz") as written:
            assert written["y"].tolist() == [-number] * 3
    once = ("--ray", "auto", "--output", "y.npz", "--input", "x=items/03.npy")
    assert plait(folder, "run", "model.plait", *once).exit_code == 0
    with np.load(folder / "y.npz") as written:
        assert written["y"].tolist() == [-3] * 3


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--devices", "ray:enc/cpu"], "which one"),
        (["--replicas", "2"], "none is named"),
        (["--ray", "auto", "--replicas", "none"], "not a number"),
        (["--ray", "auto", "--replicas", "3..2"], "not a number"),
        (["--ray", "auto", "--replicas", "2", "--trace", "t.json"], "--trace"),
    ],
)
@pytest.mark.usefixtures("ray_cluster")
def test_mistakes_are_told(folder: Path, options: list[str], told: str) -> None:
    answer = plait(folder, "run", "model.plait", "--input", "x=items/03.npy", *options)
    assert_mistake(answer, told)


@pytest.mark.extended
@pytest.mark.usefixtures("examples", "ray_cluster")
def test_two_hosts_read_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rapidocr_onnxruntime")
    images = pytest.importorskip("PIL.Image")
    drawing, fonts = pytest.importorskip("PIL.ImageDraw"), pytest.importorskip("PIL.ImageFont")
    page = images.new("RGB", (320, 96), "white")
    drawing.Draw(page).text((20, 20), "over two hosts", "black", fonts.load_default(32))
    page.save(tmp_path / "page.png")
    assert example("ocr_two_hosts").main(["--ray", "auto", str(tmp_path / "page.png")]) == 0
    assert "over two hosts" in capsys.readouterr().out


@pytest.mark.usefixtures("examples")
def test_batches_of_files_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an actor of Ray Data does, without Ray Data."""
    pytest.importorskip("magika")
    monkeypatch.setitem(sys.modules, "ray.data", ModuleType("ray.data"))
    identify = example("score_with_ray_data").Identify()
    contents = [b"import os\nprint(os.getcwd())\n" * 9, b"", b"some words\n"]
    with identify.session:
        found = identify({"bytes": contents, "path": ["a", "b", "c"]})
    assert found["path"] == ["a", "b", "c"]
    assert found["label"].tolist() == ["python", "empty", "txt"]


def test_the_examples_are_those_that_are_tried_here() -> None:
    assert {name for name in os.listdir(EXAMPLES) if "ray" in name or "two_hosts" in name} == {
        "ocr_two_hosts.py",
        "score_with_ray_data.py",
        "serve_with_ray.py",
    }
