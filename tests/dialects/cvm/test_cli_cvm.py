"""cvm models on the command line: a symbol, and its parameters beside it or named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import plait as pl
import pytest
from command_line import assert_mistake, plait
from cvm_models import dense_graph
from plait import cvm

DATA = np.array([[1, 2, 3, 4], [-1, 0, 0, 1]], np.int32)
SCORES = [[0, 0, 10], [1, 1, 1]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    symbol, params = cvm.dump_cvm(dense_graph())
    (tmp_path / "beside.json").write_bytes(symbol)
    (tmp_path / "beside.params").write_bytes(params)
    (tmp_path / "symbol").write_bytes(symbol)  # as cvm's own are called
    (tmp_path / "params").write_bytes(params)
    np.save(tmp_path / "data.npy", DATA)
    return tmp_path


@pytest.mark.parametrize("model", [["beside.json"], ["symbol", "--params", "params"]])
def test_cvm_models_are_planned_run_and_converted(folder: Path, model: list[str]) -> None:
    assert "dense" in plait(folder, "plan", *model, "--nodes").stdout
    result = plait(folder, "run", *model, "--input", "data=data.npy", "--output", "y.npz")
    assert result.exit_code == 0, result.output
    assert np.load(folder / "y.npz")["scores"].tolist() == SCORES
    done = plait(folder, "convert", *model[:1], "m.plait", *model[1:], "--json")
    assert json.loads(done.stdout)["nodes"] == 3
    assert pl.run(pl.load(folder / "m.plait"), {"data": DATA})["scores"].tolist() == SCORES


def test_load_takes_the_parameters_beside_the_symbol(folder: Path) -> None:
    assert pl.load(folder / "beside.json").constants.keys() == {"w"}
    with pytest.raises(pl.PlaitError, match=r"no parameters in .*symbol\.params") as caught:
        pl.load(folder / "symbol")
    assert "--params" in str(caught.value.fix)
    with pytest.raises(pl.PlaitError, match="a symbol has parameters"):
        cvm.load_cvm((folder / "symbol").read_bytes())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("plan", "symbol"), ("there are no parameters", "symbol.params")),
        (("plan", "symbol", "--params", "none"), ("no such file", "none")),
        (("plan", "symbol", "--params", "symbol"), ("this is not a parameter file",)),
        (
            ("run", "saved.plan", "--params", "params"),
            ("--params: that is decided in a saved plan",),
        ),
        (
            ("run", "m.plait", "--params", "params"),
            ("have no parameters in another file", "m.plait"),
        ),
    ],
)
def test_parameters_that_do_not_fit_are_a_mistake(
    folder: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    pl.save(dense_graph(), folder / "m.plait")
    pl.plan(dense_graph(), devices=["cpu"]).save(folder / "saved.plan")
    assert_mistake(plait(folder, *arguments), *words)
