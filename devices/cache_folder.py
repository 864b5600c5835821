"""The user's cache folder, for results that later processes use again."""

from __future__ import annotations

import os
from pathlib import Path


def find_cache_folder(variable: str, name: str) -> Path | None:
    """Return the folder for files of `name`; None if caching is off or has no place.

    Parameters
    ----------
    variable : str
        The environment variable that names another folder, or ``off``.
    """
    if is_off(variable):
        return None
    if chosen := os.environ.get(variable, ""):
        return Path(os.path.expanduser(chosen))
    for caches in (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")):
        if os.path.isabs(caches):  # XDG ignores others, and there are users without a home
            return Path(caches, "plait", name)
    return None


def is_off(variable: str) -> bool:
    return os.environ.get(variable, "") in ("off", "0")
