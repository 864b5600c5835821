from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from patience import WAIT_S
from plait import formats
from plait.dialects.lightnet.load import load_lightnet
from plait.graph.formats.files import open_draft, read_file, replace_file

posix = pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")


def graph() -> pl.Graph:
    b = pl.GraphBuilder("small")
    b.output("y", b.op("Add", b.input("x", "float32", (2,)), np.ones(2, "float32")))
    return b.build()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


CUT = """
import os, sys, numpy as np, plait as pl
n = 1 << 18
b = pl.GraphBuilder("g")
b.output("y", b.op("Add", b.input("x", "float32", (n,)), np.ones(n, "float32")))
pl.save(b.build(), "m.plait")
pl.plan(b.build()).save("m.plan")
pl.save_weights({"w": np.ones(n)}, "w.safetensors")
graph, plan, weights = pl.load("m.plait"), pl.load_plan("m.plan"), pl.load_weights("w.safetensors")
for name in ("m.plait", "m.plan", "w.safetensors"):
    os.truncate(name, 100)
for one in (graph, plan):
    assert pl.run(one, {"x": np.ones(n, "float32")})["y"].max() == 2
assert weights["w"].sum() == n
"""


def test_a_file_that_is_cut_while_it_is_used_does_no_harm(tmp_path: Path) -> None:
    script = [sys.executable, "-c", CUT]
    assert subprocess.run(script, cwd=tmp_path, check=False, timeout=WAIT_S).returncode == 0


def test_a_file_is_read_to_a_page(tmp_path: Path) -> None:
    content = bytes(range(256)) * 40
    (tmp_path / "f").write_bytes(content)
    view = read_file(tmp_path / "f")
    assert view.readonly
    assert bytes(view) == content
    assert np.frombuffer(view, np.uint8).ctypes.data % 4096 == 0


def test_a_file_that_no_memory_can_hold_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    os.truncate(tmp_path / "f", 1 << 43)
    with pytest.raises(pl.ParseError, match="cannot read the file: Cannot allocate memory"):
        read_file(tmp_path / "f")


ODD: dict[str, Any] = {
    "null byte": "a\0b",
    "half a surrogate": "a\ud800",
    "empty": "",
    "folder": ".",
    "missing": "gone/gone",
}

READERS: dict[str, Callable[[Any], object]] = {
    "load": pl.load,
    "load_plan": pl.load_plan,
    "load_weights": pl.load_weights,
    "load_onnx": formats.load_onnx,
    "load_lightnet": load_lightnet,
    "load_rules": formats.load_rules,
    "costs": pl.Costs.load,
    "checkpoint": lambda path: pl.Checkpoints(path).load(1),
}


@pytest.mark.parametrize("path", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize("read", READERS.values(), ids=READERS.keys())
def test_every_reader_refuses_odd_paths(
    read: Callable[[Any], object], path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pl.PlaitError) as caught:
        read(path)
    assert caught.value.fix


@pytest.mark.parametrize("path", ODD.values(), ids=ODD.keys())
def test_every_writer_refuses_odd_paths(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = pl.plan(graph())
    writers: list[Callable[[], object]] = [
        lambda: pl.save(graph(), f"{path}.plait" if path not in ("", ".") else path),
        lambda: pl.save_weights({}, path),
        lambda: plan.save(path),
        lambda: plan.save_html(path),
        lambda: pl.Costs().save(path),
        lambda: pl.simulate(plan).save(path),
    ]
    for write in writers:
        with pytest.raises(pl.PlaitError) as caught:
            write()
        assert caught.value.fix
    assert not os.listdir(tmp_path)


WRITERS: dict[str, Callable[[Path], object]] = {
    "graph.plait": lambda path: pl.save(graph(), path),
    "graph.onnx": lambda path: pl.save(graph(), path),
    "w.safetensors": lambda path: pl.save_weights({"w": np.ones(2)}, path),
    "a.plan": lambda path: pl.plan(graph()).save(path),
    "a.html": lambda path: pl.plan(graph()).save_html(path),
    "costs.json": lambda path: pl.Costs().save(path),
    "trace.json": lambda path: pl.simulate(pl.plan(graph())).save(path),
}


@posix
@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("name", WRITERS)
def test_saving_again_keeps_permissions(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    WRITERS[name](path)
    assert mode_of(path) == 0o644
    before = path.stat().st_ino
    path.chmod(0o600)
    WRITERS[name](path)
    assert mode_of(path) == 0o600
    assert path.stat().st_ino != before, "it is replaced, not written into"
    assert os.listdir(tmp_path) == [name]


@posix
def test_a_draft_of_a_private_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.touch(0o600)
    with open_draft(path):
        (draft,) = (one for one in tmp_path.iterdir() if one != path)
        assert mode_of(draft) == 0o600


@posix
@pytest.mark.usefixtures("umask")
def test_a_link_is_replaced_and_gives_nobody_more_rights(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    for mode, expected in ((0o600, 0o600), (0o666, 0o644)):
        target.write_bytes(b"precious")
        target.chmod(mode)
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        replace_file(link, [b"new"])
        assert (target.read_bytes(), link.read_bytes()) == (b"precious", b"new")
        assert not link.is_symlink()
        assert mode_of(link) == expected


@posix
def test_a_link_to_nothing_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("gone")
    replace_file(tmp_path / "link", [b"new"])
    assert not (tmp_path / "link").is_symlink()


@posix
@pytest.mark.parametrize(("kept", "expected"), [(True, 0o664), (False, 0o644)])
def test_who_cannot_keep_the_group_keeps_its_rights_from_another_one(
    kept: bool, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.touch()
    path.chmod(0o664)
    asked = []

    def chown(file: int, owner: int, group: int) -> None:
        asked.append((owner, group))
        if not kept or owner != -1:
            raise PermissionError

    theirs = os.stat_result((*path.stat()[:4], 4242, 4343, *path.stat()[6:]))
    monkeypatch.setattr(Path, "stat", lambda _, **__: theirs)
    monkeypatch.setattr("os.fchown", chown)
    replace_file(path, [b"new"])
    monkeypatch.undo()
    assert asked == [(4242, 4343), (-1, 4343)]
    assert mode_of(path) == expected


@posix
def test_what_is_no_file_is_written_to(tmp_path: Path) -> None:
    read, write = os.pipe()
    try:
        replace_file(f"/dev/fd/{write}", [b"to the reader"])
        assert os.read(read, 100) == b"to the reader"
    finally:
        os.close(read)
        os.close(write)
    replace_file("/dev/null", [b"to nobody"])
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with (tmp_path / "redirected").open("wb") as file:
        replace_file(f"/dev/fd/{file.fileno()}", [b"to the file"])
        inode = os.fstat(file.fileno()).st_ino
    assert (tmp_path / "redirected").read_bytes() == b"to the file"
    assert (tmp_path / "redirected").stat().st_ino == inode


def test_what_fails_on_the_way_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def chunks() -> Iterator[bytes]:
        yield b"new"
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        replace_file(path, chunks())
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


@posix
def test_a_folder_that_cannot_be_listed_can_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Any, *rest: Any) -> int:
        if Path(path) == tmp_path:
            raise PermissionError(13, "Permission denied")
        return opened(path, *rest)

    opened = os.open
    monkeypatch.setattr("os.open", refuse)
    replace_file(tmp_path / "f", [b"new"])
    assert (tmp_path / "f").read_bytes() == b"new"
