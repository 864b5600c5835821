"""Files as readers and writers use them: read whole, replaced whole or not at all."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeAlias

from ..errors import GraphError, ParseError, PlaitError

Refuse: TypeAlias = Callable[..., PlaitError]
"""The class of the errors that a format raises."""

_OPEN_ALREADY = ("/dev", "/proc")
"""Folders whose names stand for what is open: /dev/stdout, and where that leads."""


@contextmanager
def reading(path: str | os.PathLike[str], refuse: Refuse = ParseError) -> Iterator[BinaryIO]:
    """Open an ordinary file to be read; what fails meanwhile is raised as `refuse`.

    Pipes and devices are refused, and never waited for: they may have no end.
    """
    at = os.fspath(path)
    try:
        with open(path, "rb", buffering=0, opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise refuse("this is not an ordinary file", at=at, fix="pass a file")
            yield file
    except FileNotFoundError as error:
        raise refuse("there is no such file", at=at, fix="check the path") from error
    except IsADirectoryError as error:
        raise refuse("this is a folder", at=at, fix="pass a file in it") from error
    except (OSError, ValueError) as error:  # a null byte, or half a surrogate, in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise refuse(
            f"cannot read the file: {reason}", at=at, fix="check its path and permissions"
        ) from error


def read_file(path: str | os.PathLike[str], refuse: Refuse = ParseError) -> memoryview:
    """Return a file's bytes, in memory that starts at a page and is nobody else's.

    They are copied, not mapped. If a mapped file is cut, or another one is copied over it, the
    process ends by SIGBUS, or computes with bytes that nobody has checked.

    Raises
    ------
    PlaitError
        What `refuse` makes, if there is no such file, it cannot be read, is empty, or becomes
        shorter meanwhile.
    """
    at = os.fspath(path)
    with reading(path, refuse) as file:
        nbytes = os.fstat(file.fileno()).st_size
        if nbytes == 0:
            raise refuse("the file is empty", at=at, fix="save or download it again")
        view = memoryview(mmap.mmap(-1, nbytes))
        end = 0
        while end < nbytes:  # one call reads 2 GiB at most
            count = file.readinto(view[end:])  # type: ignore[attr-defined]
            if not count:
                raise refuse("the file was cut while it was read", at=at, fix="read it again")
            end += count
    return view.toreadonly()


def replace_file(
    target: str | os.PathLike[str],
    chunks: Iterable[bytes | memoryview],
    refuse: Refuse = GraphError,
) -> None:
    """Write a file, wholly or not at all, and for good.

    Raises
    ------
    PlaitError
        What `refuse` makes, if it cannot be written.
    """
    with replacing(target, refuse) as file:
        file.writelines(chunks)


@contextmanager
def replacing(target: str | os.PathLike[str], refuse: Refuse = GraphError) -> Iterator[BinaryIO]:
    """Open a file to be written that takes the name of another one once it is whole and on disk.

    Whoever has the old file open keeps it, and its permissions stay as they were, its owner too as
    far as the system allows. A link is replaced, what it leads to left alone. What is no file, such
    as /dev/stdout, is written to. What fails meanwhile is raised as `refuse`.
    """
    path = Path(target)
    draft = path.with_name(f".{path.name}.{os.urandom(8).hex()}") if path.name else path
    try:
        before = _status(path, refuse)
        if before is not None and _is_stream(path, before):
            with path.open("wb") as file:
                yield file
            return
        with open(draft, "xb", opener=_open_new if before is None else _open_private) as file:
            yield file
            file.flush()
            if before is not None and os.name == "posix":
                _keep_access(file.fileno(), before, is_link=path.is_symlink())
            os.fsync(file.fileno())
        draft.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise _cannot_write_error(path, error.strerror, refuse) from error
    finally:
        with suppress(OSError, ValueError):  # most often there is none left
            draft.unlink()


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting for whoever writes to a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _open_new(path: str, flags: int) -> int:
    return os.open(path, flags, 0o666)  # less what the process's mask takes away


def _open_private(path: str, flags: int) -> int:
    """Open what nobody else is to see before it has the permissions of what it replaces."""
    return os.open(path, flags, 0o600)


def _status(path: Path, refuse: Refuse) -> os.stat_result | None:
    """Return the status of the file of that name, or of what it links to; None if none is there."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None
    except ValueError as error:  # a null byte, or half a surrogate
        raise _cannot_write_error(path, error, refuse) from error


def _cannot_write_error(path: Path, reason: object, refuse: Refuse) -> PlaitError:
    return refuse(
        f"cannot write {path}: {reason}", fix="choose a file in a folder you may write to"
    )


def _is_stream(path: Path, status: os.stat_result) -> bool:
    """True for what is to be written to, as it cannot be replaced."""
    if stat.S_ISDIR(status.st_mode):
        return False
    folder = Path(os.path.realpath(path.parent))
    return (
        not stat.S_ISREG(status.st_mode)
        or str(folder) in _OPEN_ALREADY
        or (folder.is_relative_to("/proc"))
    )


def _keep_access(file: int, before: os.stat_result, *, is_link: bool) -> None:
    """Give a file the permissions of the one it replaces, and its owner and group if possible.

    Whoever made a link decides nothing: behind one, what others may do is only ever taken away.
    """
    if not hasattr(os, "fchmod"):  # as on Windows, where files have no such permissions
        return
    now = os.fstat(file)
    kept = stat.S_IMODE(before.st_mode) & 0o777
    if is_link:
        kept &= 0o644
    elif (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        for owner in (before.st_uid, -1):  # most users may give a file to a group of theirs alone
            with suppress(OSError):
                os.fchown(file, owner, before.st_gid)
                break
        else:  # the group is another one, which gets what everybody has
            kept &= ~0o070 | (kept & 0o007) << 3
    os.fchmod(file, kept)


def _sync_folder(folder: Path) -> None:
    """Have the names in a folder survive a loss of power, where the system can be asked to."""
    if os.name != "posix":
        return
    with suppress(OSError):  # some file systems know no such thing, some folders cannot be read
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
