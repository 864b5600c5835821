"""Compiled programs in a folder: found again, never trusted, never too many."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from plait.devices.cuda import cubins, nvrtc
from plait.devices.cuda.cubins import FOLDER, find_cubin_folder, load_or_make
from plait.devices.errors import KernelError

PROGRAM = b"\x7fELF" * 100


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    chosen = tmp_path / "a" / "b"
    monkeypatch.setenv(FOLDER, str(chosen))
    return chosen


def fail() -> bytes:
    raise AssertionError("compiled again")


def make(program: bytes = PROGRAM) -> Callable[[], bytes]:
    return lambda: program


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_a_program_is_compiled_once(folder: Path) -> None:
    assert load_or_make("name", make()) == PROGRAM
    assert load_or_make("name", fail) == PROGRAM


def test_another_name_is_another_program(folder: Path) -> None:
    load_or_make("name", make())
    assert load_or_make("other", make(b"other")) == b"other"
    assert load_or_make("name", fail) == PROGRAM


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b"", lambda b: b[:40] + b"?" + b[41:]]
)
def test_a_damaged_file_is_replaced(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    load_or_make("name", make())
    path = only_file(folder)
    path.write_bytes(damage(path.read_bytes()))
    assert load_or_make("name", make()) == PROGRAM
    assert load_or_make("name", fail) == PROGRAM


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX has pipes with names")
def test_a_pipe_is_replaced(folder: Path) -> None:
    load_or_make("name", make())
    path = only_file(folder)
    path.unlink()
    os.mkfifo(path)
    assert load_or_make("name", make()) == PROGRAM
    assert load_or_make("name", fail) == PROGRAM


def test_what_does_not_compile_is_not_kept(folder: Path) -> None:
    def refuse() -> bytes:
        raise KernelError("refused", fix="none")

    with pytest.raises(KernelError, match="refused"):
        load_or_make("name", refuse)
    assert not folder.exists()


def test_those_not_used_for_longest_go_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known: set[Path] = set()
    for age, name in enumerate(["used", "old", "new"]):
        load_or_make(name, make())
        (path,) = set(folder.iterdir()) - known
        known.add(path)
        os.utime(path, (1000 + age, 1000 + age))
    load_or_make("used", fail)
    monkeypatch.setattr(cubins, "MOST_BYTES", 3 * path.stat().st_size)
    load_or_make("last", make())
    for name in ("used", "new", "last"):
        assert load_or_make(name, fail) == PROGRAM
    assert load_or_make("old", make(b"again")) == b"again"


def test_other_files_in_the_folder_are_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(parents=True)
    (folder / "thesis.tex").write_bytes(b"years of work")
    monkeypatch.setattr(cubins, "MOST_BYTES", 0)
    load_or_make("name", make())
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]


def test_a_folder_that_cannot_be_written_keeps_nothing(folder: Path) -> None:
    folder.parent.touch()
    assert load_or_make("name", make()) == PROGRAM
    assert load_or_make("name", make(b"again")) == b"again"


def test_a_write_that_breaks_off_leaves_no_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace(source: str, target: Path) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        assert load_or_make("name", make()) == PROGRAM
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("chosen", ["off", "0"])
def test_the_environment_turns_it_off(monkeypatch: pytest.MonkeyPatch, chosen: str) -> None:
    monkeypatch.setenv(FOLDER, chosen)
    assert find_cubin_folder() is None
    assert load_or_make("name", make()) == PROGRAM
    assert load_or_make("name", make(b"again")) == b"again"


def test_the_users_cache_is_where_the_system_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, "")
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/ada")
    assert find_cubin_folder() == Path("/var/cache/ada/plait/cubins")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert find_cubin_folder() == Path("/home/ada/.cache/plait/cubins")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for users without a home
    assert find_cubin_folder() is None


def test_a_program_depends_on_compiler_gpu_options_and_source(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[tuple[str, str, tuple[str, ...]]] = []

    def compile_it(*given: tuple[str, str, tuple[str, ...]]) -> bytes:
        compiled.append(given)  # type: ignore[arg-type]
        return repr(given).encode()

    monkeypatch.setattr(nvrtc, "_compile", compile_it)
    once = nvrtc.compile_cubin.__wrapped__
    for version in ("NVRTC 13.0", "NVRTC 13.1"):
        monkeypatch.setattr(nvrtc, "_read_version", lambda version=version: version)
        for _ in range(2):
            once("source", "sm_90")
            once("source", "sm_100")
            once("source", "sm_90", fast_math=True)
            once("other", "sm_90")
    assert len(compiled) == 8


def test_a_folder_may_be_given_from_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv(FOLDER, "~/kernels")
    assert find_cubin_folder() == Path("/home/me/kernels")
