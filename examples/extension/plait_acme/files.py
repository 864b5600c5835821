"""A file format: chains of operators, one in a line of text."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import plait as pl

FIRST = b"# acme chain"


def sniff(file: BinaryIO) -> bool:
    """Tell a file by how its first line begins, whatever it is called."""
    return file.readline(len(FIRST)) == FIRST


def read(data: memoryview, path: Path | None) -> pl.Graph:
    """Build the chain: the length of rows, then an operator in each line."""
    _, length, *operators = bytes(data).decode().split("\n")
    b = pl.GraphBuilder("chain" if path is None else path.stem)
    last = b.input("x", "float32", ("n", int(length)))
    for op in filter(None, operators):
        last = b.op(op, last)
    b.output("y", last)
    return b.build()


def write(graph: pl.Graph) -> bytes:
    """Write what `read` reads; other graphs are refused, with a reason."""
    if any(len(node.inputs) != 1 or node.attributes for node in graph.nodes):
        raise pl.GraphError("this is not a chain of plain operators", fix="save a .plait file")
    _, length = graph.tensors[graph.inputs[0]].shape or ("", "")
    lines = [FIRST.decode(), str(length), *(node.op for node in graph.nodes)]
    return "\n".join(lines).encode()


ACME = pl.Format(name="acme", suffixes=(".acme",), sniff=sniff, read=read, write=write)
