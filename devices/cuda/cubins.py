"""Compiled programs and measured choices in a folder: NVRTC takes 10 ms a kernel, a file nothing.

What is kept is only ever a shortcut: whatever goes wrong with it, it is made again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from ...graph.errors import ParseError
from ...graph.formats.files import read_file
from ..cache_folder import cache_folder

FOLDER = "PLAIT_KERNEL_CACHE"
"""The variable of the environment that names another folder, or ``off``."""
SUFFIX = ".cubin"
MOST_BYTES = 256 << 20
"""How large the folder may grow: some thousand programs of 16 kernels."""

_DIGEST_NBYTES = sha256().digest_size


def cubin_folder() -> Path | None:
    """Return where programs are kept; None where that is off, or there is no place for it."""
    return cache_folder(FOLDER, "cubins")


def kept(name: str, make: Callable[[], bytes]) -> bytes:
    """Return what has a name from the folder, or make it and keep it there.

    Parameters
    ----------
    name : str
        Says all that it depends on.
    make : callable
    """
    folder = cubin_folder()
    if folder is None:
        return make()
    path = folder / f"{sha256(name.encode()).hexdigest()}{SUFFIX}"
    found = _read(path)
    if found is None:
        found = make()
        with suppress(OSError):  # a full disk, a folder that cannot be written: a slow start
            _write(path, found)
            _trim(folder)
    return found


def _read(path: Path) -> bytes | None:
    """Return what was written, None if that is not there, or not all of it."""
    try:
        content = read_file(path)
    except ParseError:
        return None
    digest, program = content[:_DIGEST_NBYTES], content[_DIGEST_NBYTES:]
    if digest != sha256(program).digest():
        return None
    with suppress(OSError):
        os.utime(path)  # those that were not used for longest go first
    return bytes(program)


def _write(path: Path, program: bytes) -> None:
    """Write a file that other processes see in full or not at all.

    Unlike `replace_file`, for users' files, it does not wait for the disk: what a crash cuts has
    another digest, and is compiled again.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(dir=path.parent, suffix=f"{SUFFIX}.part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(sha256(program).digest() + program)
        os.replace(unfinished, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise


def _trim(folder: Path) -> None:
    """Delete what was not used for longest, until the rest is small enough."""
    known = []
    for path in folder.glob(f"*{SUFFIX}*"):
        with suppress(OSError):  # another process deletes as well
            status = path.stat()
            known.append((status.st_mtime_ns, status.st_size, path))
    left = sum(nbytes for _, nbytes, _ in known)
    for _, nbytes, path in sorted(known):
        if left <= MOST_BYTES:
            return
        with suppress(OSError):
            path.unlink()
        left -= nbytes
