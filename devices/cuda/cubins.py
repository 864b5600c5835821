"""Compiled programs and measured choices in a folder: NVRTC takes 10 ms per kernel, a file nothing.

Files are only a shortcut: after any failure they are made again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from ...graph.formats.files import read_file
from ...graph.values.errors import ParseError
from ..cache_folder import find_cache_folder

FOLDER = "PLAIT_KERNEL_CACHE"
"""The environment variable that names another folder, or ``off``."""
SUFFIX = ".cubin"
MOST_BYTES = 256 << 20
"""Limit of the folder: some thousand programs of 16 kernels."""

_DIGEST_NBYTES = sha256().digest_size


def find_cubin_folder() -> Path | None:
    """Return the folder; None if it is turned off or has no place."""
    return find_cache_folder(FOLDER, "cubins")


def load_or_make(name: str, make: Callable[[], bytes]) -> bytes:
    """Load the file of `name` from the folder, or have `make` return its content, and store it.

    The `name` describes all that the content depends on.
    """
    folder = find_cubin_folder()
    if folder is None:
        return make()
    path = folder / f"{sha256(name.encode()).hexdigest()}{SUFFIX}"
    found = _read(path)
    if found is None:
        found = make()
        with suppress(OSError):  # such as a full disk or a read-only folder
            _write(path, found)
            _trim(folder)
    return found


def _read(path: Path) -> bytes | None:
    try:
        content = read_file(path)
    except ParseError:
        return None
    digest, program = content[:_DIGEST_NBYTES], content[_DIGEST_NBYTES:]
    if digest != sha256(program).digest():
        return None
    with suppress(OSError):
        os.utime(path)  # the least recently used files are deleted first
    return bytes(program)


def _write(path: Path, program: bytes) -> None:
    """Write `program` to `path` atomically.

    Unlike `replace_file`, for users' files, it does not wait for the disk: a file that a crash cuts
    has another digest, and is compiled again.
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
