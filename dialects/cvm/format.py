"""cvm's models as a file format: a symbol in JSON, its parameters in a file next to it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import BinaryIO

from ...graph.core.ir import Graph
from ...graph.formats.registry import Format
from ...graph.formats.sources import may_be_json

# Other keys of a model differ from these, so their position does not matter.
_KEYS = tuple(re.compile(rb'"%s"\s*:' % key) for key in (b"nodes", b"heads", b"attrs"))


def is_symbol(file: BinaryIO) -> bool:
    head = file.read(64)
    if not may_be_json(head):
        return False
    content = head + file.read()
    return all(key.search(content) for key in _KEYS)


def _read(data: memoryview, path: Path | None, parameters: Path | None = None) -> Graph:
    from .files import load_cvm

    return load_cvm(path or bytes(data), parameters).graph


CVM = Format(name="cvm", sniff=is_symbol, read=_read, read_with=_read)
