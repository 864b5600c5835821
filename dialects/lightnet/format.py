"""LightNet's models as a file format: JSON or its text form, weights in a file next to it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from ...graph.core.ir import Graph
from ...graph.formats.registry import Bytes, Format
from ...graph.formats.sources import may_be_json


def is_lightnet(file: BinaryIO) -> bool:
    """Return whether `file` could be LightNet's JSON, perhaps with comments."""
    head = file.read(64)
    return may_be_json(head) or head.lstrip()[:2] in (b"//", b"/*")


def _read(data: memoryview, path: Path | None, parameters: Path | None = None) -> Graph:
    from .load import load_lightnet

    return load_lightnet(path or bytes(data), parameters)


def _write(graph: Graph, path: Path) -> Mapping[Path, Bytes]:
    from .writer import make_files

    return make_files(graph, path)


LIGHTNET = Format(
    name="lightnet",
    suffixes=(".json", ".net"),
    sniff=is_lightnet,
    read=_read,
    read_with=_read,
    write_files=_write,
)
