"""Training that is killed at any moment goes on from its checkpoints as if it had not been."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import plait as pl
import pytest
from patience import WAIT_S

SCRIPT = Path(__file__).parents[1] / "support" / "killed_training.py"


@pytest.mark.extended
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bits(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPT), str(tmp_path), "1"],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert ran.returncode == 0, ran.stderr
    killed, _steps = map(int, ran.stdout.split())
    assert killed > 2


def counter() -> pl.Graph:
    """Return a graph whose items count in one variable, and in another add up what they are fed."""
    b = pl.GraphBuilder("counter")
    x = b.input("x", "float32", (2,))
    count = b.variable("count", np.int64(0))
    total = b.variable("total", np.zeros(2, "float32"))
    b.assign(count, b.op("Add", count, b.constant(np.int64(1))))
    b.output("total_now", b.assign(total, b.op("Add", total, x)))
    return b.build()


async def test_another_session_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    checkpoints = pl.Checkpoints(tmp_path)
    async with pl.Session(pl.plan(counter())) as session:
        await session.run({"x": np.ones(2, "float32")})
        checkpoints.save(1, session.variables)
        await session.run({"x": np.ones(2, "float32")})

    newest = checkpoints.newest()
    assert newest is not None
    async with pl.Session(pl.plan(counter())) as session:
        await session.assign(newest.matching(session.variables))
        assert session.variables["count"] == 1
        results = await session.run({"x": np.ones(2, "float32")})
    assert results["total_now"].tolist() == [2, 2]


def test_a_blocking_session_saves_and_goes_on(tmp_path: Path) -> None:
    checkpoints = pl.Checkpoints(tmp_path)
    with pl.BlockingSession(pl.plan(counter())) as session:
        session.run({"x": np.ones(2, "float32")})
        checkpoints.save(1, session.variables)

    newest = checkpoints.newest()
    assert newest is not None
    with pl.BlockingSession(pl.plan(counter())) as session:
        session.assign(newest.matching(session.variables))
        session.run({"x": np.ones(2, "float32")})
        assert session.variables["count"] == 2


async def test_trained_variables_become_those_that_a_graph_begins_with(tmp_path: Path) -> None:
    async with pl.Session(pl.plan(counter())) as session:
        await session.run({"x": np.ones(2, "float32")})
        trained = pl.with_weights(counter(), await session.fetch_variables())
    pl.save(trained, tmp_path / "trained.plait")

    async with pl.Session(pl.plan(pl.load(tmp_path / "trained.plait"))) as session:
        assert session.variables["total"].tolist() == [1, 1]
        results = await session.run({"x": np.ones(2, "float32")})
    assert results["total_now"].tolist() == [2, 2]
