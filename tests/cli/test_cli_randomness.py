"""`--seed` of commands that run graphs which draw random numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plait as pl
import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from command_line import assert_mistake, plait


def drawing(folder: Path) -> pl.Graph:
    b = pl.GraphBuilder("drawing")
    x = b.input("x", "float32", (3,))
    b.output("y", b.op("Add", x, b.op("RandomNormalLike", x)))
    graph = b.build()
    pl.save(graph, folder / "model.plait")
    np.save(folder / "x.npy", np.zeros(3, "float32"))
    return graph


def test_the_seed_is_that_of_a_session_and_items_of_a_stream_are_numbered(tmp_path: Path) -> None:
    graph, zeros = drawing(tmp_path), {"x": np.zeros(3, "float32")}
    with pl.BlockingSession(pl.plan(graph), seed=5) as session:
        wanted = [session.run(zeros)["y"].tolist() for _ in range(3)]
    one = plait(
        tmp_path, "run", "model.plait", *["--input", "x.npy", "--seed", "5", "--output", "1.npz"]
    )
    assert one.exit_code == 0, one.stderr
    arguments = ["--input", "x=x.npy", "--seed", "5", "--count", "3", "--output", "many"]
    many = plait(tmp_path, "stream", "model.plait", *arguments)
    assert many.exit_code == 0, many.stderr
    files = ["1.npz", *(f"many/{number:04d}.npz" for number in range(3))]
    found = [np.load(tmp_path / file)["y"].tolist() for file in files]
    assert found == [wanted[0], *wanted]


def test_nobody_is_asked_for_the_key(tmp_path: Path) -> None:
    drawing(tmp_path)
    assert_mistake(plait(tmp_path, "run", "model.plait"), "nothing is given for x\n")
    assert plait(tmp_path, "profile", "model.plait", "--repeat", "2").exit_code == 0
