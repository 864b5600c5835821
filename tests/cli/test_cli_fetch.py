"""``--fetch``: some tensors of a model instead of all outputs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import plait as pl
import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from command_line import assert_mistake, plait


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of two inputs, and what they are fed."""
    made = tmp_path_factory.mktemp("models")
    b = pl.GraphBuilder("paths")
    left = b.op("Relu", b.input("a", "float32", ("n",)), name="left")
    b.output("y", b.op("Neg", left))
    b.output("z", b.op("Add", left, b.input("b", "float32", ("n",))))
    pl.save(b.build(), made / "paths.plait")
    np.save(made / "a.npy", np.array([-1, 3], np.float32))
    np.savez(made / "ab.npz", a=np.array([-1, 3], np.float32), b=np.zeros(2, np.float32))
    (made / "items").mkdir()
    for i in range(3):
        np.savez(made / "items" / f"{i}.npz", a=np.full(2, i, np.float32), b=np.zeros(2, "f4"))
    return made


@pytest.mark.parametrize("given", ["a=a.npy", "ab.npz"])
def test_run_computes_what_is_fetched_from_what_that_needs(folder: Path, given: str) -> None:
    arguments = ["--input", given, "--fetch", "left", "--fetch", "y", "--output", "out.npz"]
    result = plait(folder, "run", "paths.plait", *arguments)
    assert result.exit_code == 0, result.stderr
    assert "wrote left, y to out.npz" in result.stdout
    with np.load(folder / "out.npz") as found:
        assert found["left"].tolist() == [0, 3]
        assert found["y"].tolist() == [0, -3]


def test_stream_computes_what_is_fetched(folder: Path) -> None:
    arguments = ["--input", "items", "--fetch", "left", "--output", "results", "--json"]
    result = plait(folder, "stream", "paths.plait", *arguments)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["done"] == 3
    for i in range(3):
        with np.load(folder / "results" / f"{i:04d}.npz") as found:
            assert found.files == ["left"]
            assert found["left"].tolist() == [i, i]


def test_an_unknown_tensor_is_a_mistake(folder: Path) -> None:
    result = plait(folder, "run", "paths.plait", "--input", "a=a.npy", "--fetch", "lefty")
    assert_mistake(result, "graph 'paths' has no tensor 'lefty'", "'left'")


def test_an_input_that_the_model_does_not_have_is_a_mistake(folder: Path) -> None:
    arguments = ["--input", "a=a.npy", "--input", "c=a.npy", "--fetch", "y"]
    assert_mistake(plait(folder, "run", "paths.plait", *arguments), "no input 'c'")


def test_plans_and_profiles_are_of_what_is_fetched(folder: Path) -> None:
    result = plait(folder, "plan", "paths.plait", "--fetch", "left", "--nodes")
    assert result.exit_code == 0, result.stderr
    assert "left" in result.stdout
    assert "Neg" not in result.stdout
    arguments = ["--fetch", "left", "--input", "ab.npz", "--count", "2"]
    result = plait(folder, "profile", "paths.plait", *arguments)
    assert result.exit_code == 0, result.stderr
    assert "Add" not in result.stdout


def test_a_saved_plan_is_for_what_was_fetched(folder: Path) -> None:
    options = ["--fetch", "left", "--save", "left.plan"]
    assert plait(folder, "plan", "paths.plait", *options).exit_code == 0
    result = plait(folder, "run", "left.plan", "--input", "ab.npz", "--json")
    assert [one["name"] for one in json.loads(result.stdout)["outputs"]] == ["left"]
