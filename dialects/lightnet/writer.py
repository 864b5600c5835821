"""Graphs written as LightNet's files: the model in JSON or its text form, its weights in text."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ...graph.check import check
from ...graph.errors import GraphError
from ...graph.formats.files import replace_file
from ...graph.ir import Graph
from ...graph.passes.unneeded import remove_dead
from .document import Document
from .writing import writable, write_node

SUFFIX = ".net"
"""Of files in the text form."""


def dump_lightnet(graph: Graph, *, as_text: bool = False) -> tuple[bytes, bytes]:
    """Return a graph as LightNet's JSON or text form, and its constants as LightNet's weights.

    Inputs are tensors that are created and stand in no file. Constants that weights cannot hold are
    written into the model. The text form has names of letters, digits and ``_`` alone: what is
    neither fed nor fetched is renamed where it has to be.

    Raises
    ------
    GraphError
        If the graph breaks an invariant, a shape is not known, or LightNet has no operator for what
        is done; the message names all such operators.
    """
    live = remove_dead(check(graph))
    unknown = sorted({node.op for node in live.nodes if not writable(node)})
    if unknown:
        raise GraphError(
            f"LightNet has no operators for {', '.join(unknown)}",
            at=graph.name,
            fix="save a .plait file or an ONNX model",
        )
    document = Document(live)
    for name in live.inputs:
        document.create(name, live.tensors[name], from_file=True)
    for node in live.nodes:
        write_node(document, node)
    return document.finish(as_text=as_text)


def save_lightnet(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write a graph to a model of LightNet's, and its weights beside it, in a ``.wts`` file.

    The model is in the text form where the path ends in ``.net``, else in JSON.

    Raises
    ------
    GraphError
        As `dump_lightnet`; or if a file cannot be written.
    """
    for file, content in written_files(graph, Path(path)).items():
        replace_file(file, [content])


def written_files(graph: Graph, path: Path) -> Mapping[Path, bytes]:
    """Return the bytes of the weights, and of the model, by path.

    Raises
    ------
    GraphError
        As `dump_lightnet`.
    """
    model, weights = dump_lightnet(graph, as_text=path.suffix == SUFFIX)
    return {path.with_suffix(".wts"): weights, path: model}
