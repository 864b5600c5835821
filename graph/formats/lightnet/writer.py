"""Graphs written as LightNet's files: the model in JSON or its text form, its weights in text."""

from __future__ import annotations

import os
from pathlib import Path

from ...check import check
from ...errors import GraphError
from ...ir import Graph
from ...passes.dead import remove_dead
from ..files import replace_file
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
    model, weights = dump_lightnet(graph, as_text=Path(path).suffix == SUFFIX)
    replace_file(Path(path).with_suffix(".wts"), [weights])
    replace_file(path, [model])
