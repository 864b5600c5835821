"""The user's cache folder, for results that later processes use again."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from hashlib import sha256
from itertools import islice
from pathlib import Path

FIGURES = "PLAIT_FIGURES"
"""The environment variable that names the folder of measured results, or ``off``: no measuring."""

MOST = 4096
"""Limit of kept texts of each name, and of the bytes of each."""


def find_cache_folder(variable: str, name: str) -> Path | None:
    """Return the folder for files of `name`; None if caching is off or has no place.

    The environment `variable` names another folder, or is ``off``.
    """
    if is_off(variable):
        return None
    if chosen := os.environ.get(variable, ""):
        return Path(os.path.expanduser(chosen))
    for caches in (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")):
        if os.path.isabs(caches):  # XDG ignores others, and there are users without a home
            return Path(caches, "plait", name)
    return None


@cache
def hash_sources(*packages: str) -> str:
    """Return a digest of the code of `packages` of `devices`, on which kept results depend.

    The version of plait is the same for all commits between two releases.
    """
    folders = (Path(__file__).parent / package for package in packages)
    files = (file for folder in folders for file in sorted(folder.glob("*.py")))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def read_texts(name: str) -> dict[str, str]:
    """Return the texts of `name` that this and earlier processes kept, by key."""
    found, folder = {}, find_cache_folder(FIGURES, name)
    with suppress(OSError):
        for path in () if folder is None else islice(folder.glob(f"*.{name}"), MOST):
            if path.is_file() and path.stat().st_size <= MOST:  # a pipe would block
                found[path.stem] = path.read_text("utf-8", "replace")
    return found


def keep_text(name: str, key: str, text: str) -> None:
    """Keep `text` for later processes, unless one of `name` and `key` is kept already."""
    if (folder := find_cache_folder(FIGURES, name)) is None:
        return
    with suppress(OSError):  # no room or rights: the next process finds it out again
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(folder / f"{key}.{name}", "xb") as file:
            file.write(text.encode(errors="replace")[:MOST])


def is_off(variable: str) -> bool:
    return os.environ.get(variable, "") in ("off", "0")
