"""``plait plan --precision``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plait as pl
import pytest
from command_line import assert_mistake, plait


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a model of one product."""
    b = pl.GraphBuilder("product")
    b.output("y", b.op("MatMul", b.input("x", "float32", (2, 2)), np.eye(2, dtype=np.float32)))
    pl.save(b.build(), tmp_path / "product.plait")
    return tmp_path


@pytest.mark.parametrize(
    "said", [["float16"], ["cpu=float16"], ["cpu=float16", "worker:0=float16"]]
)
def test_devices_may_compute_in_float16(folder: Path, said: list[str]) -> None:
    options = [part for one in said for part in ("--precision", one)]
    done = plait(folder, "plan", "product.plait", "--devices", "cpu,worker:0", *options)
    assert "1 of 1 node, 2 conversions" in done.stdout


@pytest.mark.parametrize(
    "said", [["half"], ["cpu=float64"], ["float16", "cpu=float16"], ["=float16"]]
)
def test_what_is_no_precision_is_a_mistake(folder: Path, said: list[str]) -> None:
    options = [part for one in said for part in ("--precision", one)]
    assert_mistake(plait(folder, "plan", "product.plait", *options), "--precision")


def test_a_device_that_is_not_planned_for_is_a_mistake(folder: Path) -> None:
    done = plait(folder, "plan", "product.plait", "--precision", "worker:0=float16")
    assert_mistake(done, "worker:0", "not one of the plan's devices")


def test_another_precision_contradicts_a_saved_plan(folder: Path) -> None:
    plait(folder, "plan", "product.plait", "--save", "product.plan")
    done = plait(folder, "plan", "product.plan", "--precision", "cpu=float16")
    assert_mistake(done, "--precision")
