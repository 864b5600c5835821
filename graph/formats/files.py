"""Read files as a whole; replace them as a whole or not at all."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeAlias

from ..values.errors import GraphError, ParseError, PlaitError

Refuse: TypeAlias = Callable[..., PlaitError]
"""The class of the errors that a format raises."""

_OPEN_ALREADY = ("/dev", "/proc")
"""Folders of names for open files, such as /dev/stdout and its targets."""


@contextmanager
def open_file(path: str | os.PathLike[str], refuse: Refuse = ParseError) -> Iterator[BinaryIO]:
    """Open the ordinary file `path` for reading; errors inside are raised as `refuse`.

    Pipes and devices are refused without waiting: they may never end.
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
    """Return the bytes of the file `path`, in private memory that starts at a page.

    They are copied, not mapped: if a mapped file is cut or overwritten, the process ends by SIGBUS,
    or computes with unchecked bytes. Raises `refuse` if the file is missing, unreadable, empty, or
    shrinks meanwhile.
    """
    at = os.fspath(path)
    with open_file(path, refuse) as file:
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
    *,
    is_durable: bool = True,
    draft: str = "",
) -> None:
    """Write `chunks` to the file `target` as a whole or not at all; raises `refuse` on failure.

    If the name to write to first has a fixed ending, `draft`, the next attempt overwrites it. With
    `is_durable` the file survives a loss of power.
    """
    with open_draft(target, refuse, is_durable=is_durable, ending=draft) as file:
        file.writelines(chunks)


@contextmanager
def open_draft(
    target: str | os.PathLike[str],
    refuse: Refuse = GraphError,
    *,
    is_durable: bool = True,
    ending: str = "",
) -> Iterator[BinaryIO]:
    """Open a draft, a file with `ending`, which replaces `target` once it is complete.

    With `is_durable` it survives a loss of power. Readers of the old file keep that. Permissions
    stay, and the owner if the system allows. Of a link, the target stays as it is. A stream such as
    /dev/stdout is written to directly. Errors inside are raised as `refuse`.
    """
    path = Path(target)
    name = f".{path.name}.{ending or os.urandom(8).hex()}"
    draft = path.with_name(name) if path.name else path
    try:
        if ending:
            draft.unlink(missing_ok=True)
        before = _find_status(path, refuse)
        if before is not None and _is_stream(path, before):
            with path.open("wb") as file:
                yield file
            return
        # As umask says, or unreadable to others until the permissions are set.
        mode = 0o666 if before is None else 0o600
        with open(draft, "xb", opener=lambda path, flags: os.open(path, flags, mode)) as file:
            yield file
            file.flush()
            if before is not None and os.name == "posix":
                _keep_access(file.fileno(), before, is_link=path.is_symlink())
            if is_durable:
                os.fsync(file.fileno())
        draft.replace(path)
        if is_durable:
            _sync_folder(path.parent)
    except OSError as error:
        raise _cannot_write_error(path, error.strerror, refuse) from error
    finally:
        with suppress(OSError, ValueError):  # usually renamed already
            draft.unlink()


def _open_at_once(path: str, flags: int) -> int:
    """Open `path` with `flags`, without waiting for the writer of a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _find_status(path: Path, refuse: Refuse) -> os.stat_result | None:
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
    """Return whether `path`, which has `status`, can be written to, but not replaced."""
    if stat.S_ISDIR(status.st_mode):
        return False
    folder = Path(os.path.realpath(path.parent))
    return (
        not stat.S_ISREG(status.st_mode)
        or str(folder) in _OPEN_ALREADY
        or (folder.is_relative_to("/proc"))
    )


def _keep_access(file: int, before: os.stat_result, *, is_link: bool) -> None:
    """Copy permissions, and owner and group if possible, from the status `before` to `file`.

    With `is_link` permissions of others only shrink: the maker of a link must not gain access.
    """
    if not hasattr(os, "fchmod"):  # Windows has no such permissions
        return
    now = os.fstat(file)
    kept = stat.S_IMODE(before.st_mode) & 0o777
    if is_link:
        kept &= 0o644
    elif (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        for owner in (before.st_uid, -1):  # most users may only set a group of theirs
            with suppress(OSError):
                os.fchown(file, owner, before.st_gid)
                break
        else:  # another group gets the permissions of others
            kept &= ~0o070 | (kept & 0o007) << 3
    os.fchmod(file, kept)


def _sync_folder(folder: Path) -> None:
    """Make the names in `folder` survive a loss of power, if the system can."""
    if os.name != "posix":
        return
    with suppress(OSError):  # unsupported by some file systems; unreadable folders
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
