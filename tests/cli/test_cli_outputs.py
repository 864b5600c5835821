"""Outputs of ``plait run`` as tables, JSON and .npy, and ``--format`` for models without a name."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path

import numpy as np
import plait as pl
import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from command_line import assert_mistake, plait

TEXT_FORM = b"""
create(| dst=x | dtype=TL_FLOAT, dims=[1, 2], ran=[0, 1], data=[0], from_file=true);
relu(src=x | dst=y |)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    b = pl.GraphBuilder("two")
    x = b.input("x", "float32", (3,))
    w = b.constant(np.ones(3, np.float32), name="w")
    b.output("y", b.op("Mul", x, w))
    b.output("place", b.op("ArgMax", x, axis=0, keepdims=False))
    pl.save(b.build(), tmp_path / "two.plait")
    return tmp_path


RUN = ("run", "two.plait", "--input", "x=[1, 4, -0.5]")


def test_values_are_in_the_table(folder: Path) -> None:
    shown = plait(folder, *RUN).stdout
    assert "[ 1. 4. -0.5]" in shown
    assert "values" in shown


def test_values_are_in_json(folder: Path) -> None:
    y, place = json.loads(plait(folder, *RUN, "--json").stdout)["outputs"]
    assert (y["values"], place["values"]) == ([1, 4, -0.5], 1)


def test_json_on_stdout_has_all_values(tmp_path: Path) -> None:
    b = pl.GraphBuilder("long")
    b.output("y", b.input("x", "float32", (1001,)).relu())
    pl.save(b.build(), tmp_path / "long.plait")
    run = ("run", "long.plait", "--input", "x=random", "--json")
    (short,) = json.loads(plait(tmp_path, *run).stdout)["outputs"]
    (whole,) = json.loads(plait(tmp_path, *run, "--output", "-").stdout)["outputs"]
    assert "values" not in short
    assert len(whole["values"]) == 1001


@pytest.mark.parametrize("dtype", ["bfloat16", "complex64", "bool", "float16"])
def test_values_of_any_dtype_are_json(dtype: str, tmp_path: Path) -> None:
    b = pl.GraphBuilder("same")
    b.output("y", b.op("Identity", b.input("x", dtype, (2,))))
    pl.save(b.build(), tmp_path / "same.plait")
    done = plait(tmp_path, "run", "same.plait", "--input", "x=random", "--json")
    assert len(json.loads(done.stdout)["outputs"][0]["values"]) == 2


def test_one_output_is_written_to_stdout(folder: Path) -> None:
    done = plait(folder, *RUN, "--fetch", "y", "--output", "-")
    assert np.load(BytesIO(done.stdout_bytes)).tolist() == [1, 4, -0.5]
    done = plait(folder, *RUN, "--output", "-")
    assert_mistake(done, "--output - writes one output", "--fetch one of y, place")


def test_a_constant_of_the_model_is_fed(folder: Path) -> None:
    done = plait(folder, *RUN, "--input", "w=[2,2,2]", "--fetch", "y", "--output", "-")
    assert np.load(BytesIO(done.stdout_bytes)).tolist() == [2, 8, -1]


def test_the_format_of_bytes_is_given(tmp_path: Path) -> None:
    run = ("run", "-", "--input", "x=[[1,-1]]", "--fetch", "y", "--output", "-")
    assert plait(tmp_path, *run, stdin=TEXT_FORM).exit_code == 2
    done = plait(tmp_path, *run, "--format", "lightnet", stdin=TEXT_FORM)
    assert np.load(BytesIO(done.stdout_bytes)).tolist() == [[1, 0]]
    done = plait(tmp_path, "convert", "-", "x.onnx", "--format", "lightnet", stdin=TEXT_FORM)
    assert done.exit_code == 0
    assert_mistake(plait(tmp_path, *run, "--format", "onnxx", stdin=TEXT_FORM), "onnxx")


def test_a_saved_plan_has_no_format(folder: Path) -> None:
    plait(folder, "plan", "two.plait", "--save", "two.plan")
    done = plait(folder, "plan", "two.plan", "--format", "onnx")
    assert_mistake(done, "--format: that is decided in a saved plan")
