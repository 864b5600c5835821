"""``plait plan --passes`` and ``--explain-passes``."""

from __future__ import annotations

import json
from pathlib import Path

import plait as pl
import pytest
from command_line import assert_mistake, plait


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a model: y = x · sigmoid(identity(x))."""
    b = pl.GraphBuilder("swish")
    x = b.input("x", "float32", (4,))
    copy = b.op("Identity", x, name="copy")
    b.output("y", b.op("Mul", copy, b.op("Sigmoid", copy, name="gate"), name="product"))
    pl.save(b.build(), tmp_path / "swish.plait")
    return tmp_path


def operators(folder: Path, *options: str) -> str:
    found = json.loads(plait(folder, "plan", "swish.plait", "--json", *options).stdout)
    return ",".join(sorted(found["nodes"]))


@pytest.mark.parametrize(
    ("passes", "left"),
    [
        ("none", "copy,gate,product"),
        ("fuse_activation", "copy,product"),
        ("-fuse_activation", "gate,product"),
        ("bypass_identities,fuse_activation", "product"),
    ],
)
def test_passes_are_named_or_left_out(folder: Path, passes: str, left: str) -> None:
    assert operators(folder, "--passes", passes) == left


def test_what_each_pass_did_is_explained_with_names(folder: Path) -> None:
    said = plait(folder, "plan", "swish.plait", "--explain-passes").stdout
    assert "passes: 3 -> 1 nodes" in said
    assert "removed    copy" in said
    assert "rewritten  product: Mul -> Swish" in said


def test_dead_nodes_are_explained(folder: Path) -> None:
    b = pl.GraphBuilder("dead")
    x = b.input("x", "float32", (2,))
    b.op("Neg", x, name="unused", outputs=["n"])
    b.output("y", b.op("Relu", x))
    pl.save(b.build(), folder / "dead.plait")
    said = plait(folder, "plan", "dead.plait", "--explain-passes").stdout
    assert "dead: 1 node that no output needs, dropped\n  unused: nothing reads 'n'" in said


def test_that_no_pass_found_anything_is_said(folder: Path) -> None:
    said = plait(folder, "plan", "swish.plait", "--passes", "none", "--explain-passes").stdout
    assert "none of them" in said


def test_an_unknown_pass_is_a_mistake(folder: Path) -> None:
    done = plait(folder, "plan", "swish.plait", "--passes", "fuse_activations")
    assert_mistake(done, "did you mean 'fuse_activation' or")


def test_other_passes_contradict_a_saved_plan(folder: Path) -> None:
    plait(folder, "plan", "swish.plait", "--save", "swish.plan")
    assert_mistake(plait(folder, "plan", "swish.plan", "--passes", "none"), "--passes")
