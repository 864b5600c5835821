"""``plait quantize``: from files of floats to a file of integers, and what that costs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import plait as pl
import pytest
from command_line import assert_mistake, plait


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a model, a folder of items, and other items."""
    random = np.random.default_rng(0)
    b = pl.GraphBuilder("layers")
    h = b.input("x", "float32", ("n", 16))
    for index in range(2):
        h = b.op("Relu", b.op("MatMul", h, random.standard_normal((16, 16)).astype("float32"),
                              name=f"layer/{index}"))  # fmt: skip
    b.output("y", h)
    pl.save(b.build(), tmp_path / "model.plait")
    (tmp_path / "items").mkdir()
    for index in range(3):
        np.savez(tmp_path / "items" / f"{index}.npz", x=random.standard_normal((4, 16), np.float32))
    np.savez(tmp_path / "others.npz", x=random.standard_normal((4, 16), np.float32))
    return tmp_path


def test_a_model_is_quantised_reported_and_written(folder: Path) -> None:
    result = plait(folder, "quantize", "model.plait", "--calibrate", "items", "--output", "q.plait")
    assert result.exit_code == 0, result.output
    assert "2 of 2 products in integers" in result.stdout
    assert "output y: " in result.stdout
    assert "wrote q.plait" in result.stdout
    assert "MatMulInteger" in {node.op for node in pl.load(folder / "q.plait").nodes}


def test_json_tells_accuracy_on_other_items_and_costs(folder: Path) -> None:
    result = plait(
        folder, "quantize", "model.plait", "--calibrate", "items", "--check", "others.npz",
        "--exclude", "layer/0", "--costs", "--json", "--ranges", "mse", "--activations", "int8",
        "--per-tensor",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["products"] == ["layer/1"]
    assert told["kept"] == {"layer/0": "excluded"}
    assert told["accuracy"]["y"]["sqnr_db"] > 20
    assert list(told["costs"]) == ["layer/1"]


def test_costs_are_listed(folder: Path) -> None:
    result = plait(folder, "quantize", "model.plait", "--calibrate", "others.npz", "--costs")
    assert "layer/0 alone: " in result.stdout


def test_products_that_cost_too_much_stay_in_floats(folder: Path) -> None:
    result = plait(
        folder, "quantize", "model.plait", "--calibrate", "items", "--min-sqnr", "400", "--qdq",
        "--count", "2",
    )  # fmt: skip
    assert "0 of 2 products in integers" in result.stdout


def test_random_items_are_counted(folder: Path) -> None:
    result = plait(
        folder, "quantize", "model.plait", "--calibrate", "x=random", "--count", "3", "--qdq",
        "--shape", "x=5,16", "--output", "q.plait",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "proposed" not in result.stderr
    written = pl.load(folder / "q.plait")
    assert "DequantizeLinear" in {node.op for node in written.nodes}
    assert written.tensors["x"].shape == ("n", 16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--calibrate", "items", "--output", "q.txt"], "ends in neither .plait nor .onnx"),
        (["--calibrate", "nowhere"], "finds no file"),
        (["--calibrate", "items", "--exclude", "nothing"], "'nothing' fits no node"),
    ],
)
def test_mistakes_are_told(folder: Path, arguments: list[str], message: str) -> None:
    assert_mistake(plait(folder, "quantize", "model.plait", *arguments), message)


def test_inputs_to_calibrate_with_are_asked_for(folder: Path) -> None:
    result = plait(folder, "quantize", "model.plait")
    assert result.exit_code == 2
    assert "--calibrate" in result.stderr
