"""The user's cache folder: what was made or measured once, for later processes."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(variable: str, name: str) -> Path | None:
    """Return where things of a name are kept; None where that is off, or there is no place for it.

    Parameters
    ----------
    variable : str
        The variable of the environment that names another folder, or ``off``.
    name : str
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
    """True if the user wants nothing kept."""
    return os.environ.get(variable, "") in ("off", "0")
