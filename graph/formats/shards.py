"""Weights in several safetensors files, and the JSON file that says which array is in which.

{"metadata": {...}, "weight_map": {"name of an array": "name of a file beside this one", ...}}
"""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import ParseError
from ..tensor import Array
from .files import read_file
from .safetensors import read_weights
from .sources import json_in

INDEX = ".safetensors.index.json"
"""How names of such files end."""

_FIX = "download it again, with all files that belong to it"


def load_shards(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Return the arrays that an index lists, by name.

    Raises
    ------
    ParseError
        If it or a file is missing or damaged, lies elsewhere, or lacks an array.
    ShapeError
        As `load_weights`.
    """
    folder, at = Path(path).parent, os.fspath(path)
    places = _places(path, at)
    files = {
        file: read_weights(read_file(folder / file), str(folder / file))[0]
        for file in dict.fromkeys(places.values())
    }
    for name, file in places.items():
        if name not in files[file]:
            raise ParseError(f"the file {file!r} has no array {name!r}", at=at, fix=_FIX)
    return {name: files[file][name] for name, file in places.items()}


def _places(path: str | os.PathLike[str], at: str) -> dict[str, str]:
    """Return the names of arrays and of the files that they are in."""
    data = read_file(path)
    index = json_in(lambda: bytes(data).decode(), at, ParseError, _FIX, "the index is damaged")
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict) or not all(isinstance(f, str) for f in places.values()):
        raise ParseError("there is no weight_map of files by name", at=at, fix=_FIX)
    for file in places.values():
        if file in ("", ".", "..") or "\0" in file or set(file) & {"/", "\\"}:
            raise ParseError(f"{file!r} is not a file beside the index", at=at, fix=_FIX)
    return places
