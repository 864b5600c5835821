"""Names that files bring along, on the way to terminals and to files."""

from __future__ import annotations

import os
import stat
import zipfile
from pathlib import Path

import numpy as np
import plait as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("click")
pytest.importorskip("rich")

from command_line import plait
from plait.cli.inputs import read_arrays
from plait.cli.output import from_member_name, to_member_name, write_arrays

EVIL = "\x1b[2J\x1b]0;t\x07\u202e"


def graph_of(name: str, node: str = "a") -> pl.Graph:
    b = pl.GraphBuilder(name)
    b.output(name, b.op("Relu", b.input("x" + name, "float32", (2,)), name=node))
    return b.build()


@pytest.mark.parametrize(
    "command",
    [
        ["plan", "evil.plait", "--nodes"],
        ["plan", "evil.plait", "--explain-passes"],
        ["plan", "evil.plait", "--dot"],
        ["plan", "evil.plait", "--json"],
        ["plan", "evil.plait", "--pin", "q=cpu"],
        ["plan", "evil.plait", "--html", "p.html"],
        ["run", "evil.plait"],
        ["run", "evil.plait", "--input", "random"],
        ["run", "evil.plait", "--input", "random", "--output", "o.npz"],
        ["profile", "evil.plait", "--repeat", "2", "--faster", "Relu=2"],
        ["simulate", "evil.plait"],
        ["stream", "evil.plait", "--count", "2"],
        ["convert", "evil.plait", "o.onnx"],
        ["quantize", "evil.plait", "--calibrate", "random"],
    ],
    ids=" ".join,
)
def test_terminals_get_no_escapes_from_names(command: list[str], tmp_path: Path) -> None:
    pl.save(graph_of("y" + EVIL, "a" + EVIL), tmp_path / "evil.plait")
    result = plait(tmp_path, *command)
    for text in (result.stdout, result.stderr):
        assert all(line.isprintable() for line in text.split("\n"))
    assert result.exit_code in (0, 2)
    assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("name", ["../../x", "/x", "a/../b", "a//b", "a/", ".", "..\\x", "c:x"])
def test_members_of_a_written_file_stay_inside(name: str, tmp_path: Path) -> None:
    write_arrays(tmp_path / "o.npz", {name: np.ones(2)})
    with zipfile.ZipFile(tmp_path / "o.npz") as archive:
        (member,) = archive.namelist()
        archive.extractall(tmp_path / "out")
    assert ".." not in member
    assert not set(member) & set("/\\:")
    assert [file.name for file in tmp_path.rglob("*.npy")] == [member]
    assert read_arrays(tmp_path / "o.npz", None, graph_of("y"))[name].tolist() == [1, 1]


@given(st.text(min_size=1))
def test_names_of_arrays_and_of_members_are_one_to_one(name: str) -> None:
    member = to_member_name(name)
    assert from_member_name(member) == name
    assert member.isprintable()
    assert ".." not in member.split("/")


@given(st.text(min_size=1))
def test_members_that_others_wrote_are_called_one_thing(member: str) -> None:
    assert from_member_name(member) in (member, from_member_name(from_member_name(member)))


@pytest.mark.parametrize("name", ["encoder/out:0".replace(":", "."), "y", "%5", "a..b", "ö"])
def test_names_that_lead_nowhere_else_are_kept(name: str) -> None:
    assert to_member_name(name) == name


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
def test_outputs_written_again_stay_private(tmp_path: Path) -> None:
    write_arrays(tmp_path / "o.npz", {"y": np.ones(2)})
    (tmp_path / "o.npz").chmod(0o600)
    write_arrays(tmp_path / "o.npz", {"y": np.zeros(2)})
    assert stat.S_IMODE((tmp_path / "o.npz").stat().st_mode) == 0o600
    assert np.load(tmp_path / "o.npz")["y"].tolist() == [0, 0]
