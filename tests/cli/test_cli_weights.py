from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import plait as pl
import pytest
from command_line import assert_mistake, plait


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    b = pl.GraphBuilder("scale")
    x, w = b.input("x", "float32", (2,)), b.constant(np.array([1, 2], "float32"), "w")
    b.output("y", b.op("Mul", x, w))
    pl.save(b.build(), tmp_path / "m.plait")
    return tmp_path


def test_convert_writes_the_weights_alone(folder: Path) -> None:
    result = plait(folder, "convert", "m.plait", "w.safetensors", "--json")

    assert json.loads(result.stdout)["output"] == "w.safetensors"
    assert pl.load_weights(folder / "w.safetensors")["w"].tolist() == [1, 2]


def test_convert_puts_other_weights_into_a_model(folder: Path) -> None:
    pl.save_weights({"w": np.array([3, 4], "float32")}, folder / "w.safetensors")
    result = plait(folder, "convert", "m.plait", "o.plait", "--weights", "w.safetensors")

    assert result.exit_code == 0
    assert pl.load(folder / "o.plait").constants["w"].tolist() == [3, 4]


def test_weights_that_the_model_lacks_are_a_mistake(folder: Path) -> None:
    pl.save_weights({"v": np.ones(2)}, folder / "w.safetensors")
    result = plait(folder, "convert", "m.plait", "o.plait", "--weights", "w.safetensors")

    assert_mistake(result, "no weights named 'v'", "'w'")
    assert not (folder / "o.plait").exists()
