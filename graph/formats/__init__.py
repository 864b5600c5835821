"""File formats, each written and read: `.plait`, ONNX models, and safetensors for weights."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import GraphError, ParseError
from ..ir import Graph
from .checkpoints import Checkpoint, Checkpoints
from .container import GRAPHS, PLANS
from .cvm import is_symbol, load_cvm
from .files import reading
from .freezing import freeze
from .lightnet import is_lightnet, load_lightnet, save_lightnet
from .native import dump_bytes, is_native, load_bytes, load_native
from .native import save as save_native
from .onnx import load_onnx, save_onnx, to_onnx
from .rules import load_rules
from .sources import content_of
from .weights import load_weights, save_weights, weights_of, with_weights

__all__ = [
    "Checkpoint",
    "Checkpoints",
    "dump_bytes",
    "freeze",
    "load",
    "load_bytes",
    "load_lightnet",
    "load_native",
    "load_onnx",
    "load_rules",
    "load_weights",
    "save",
    "save_lightnet",
    "save_native",
    "save_onnx",
    "save_weights",
    "to_onnx",
    "weights_of",
    "with_weights",
]

_WRITERS = {
    ".plait": save_native,
    ".onnx": save_onnx,
    ".json": save_lightnet,
    ".net": save_lightnet,
}
_WEIGHTS = ".safetensors"


def load(path: str | os.PathLike[str]) -> Graph:
    """Return the graph in a `.plait` file, or a model of ONNX, LightNet or cvm, told by content.

    A file whose name ends in ``.net`` is in LightNet's text form. The weights of LightNet's lie
    beside the model, in a file that ends in ``.wts``, cvm's parameters in one that ends in
    ``.params``. Files are read whole: they may be changed, replaced or deleted afterwards.

    Raises
    ------
    ParseError
        If the file is missing, damaged or foreign, or uses what plait lacks.
    GraphError
        If it holds a graph that does not fit together.
    RuntimeFailureError
        If it is cvm's, and cannot be read.

    Examples
    --------
    >>> import tempfile, plait as pl
    >>> b = pl.GraphBuilder("double")
    >>> x = b.input("x", "float32", ("n",))
    >>> b.output("y", b.op("Add", x, x))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pl.save(b.build(), folder + "/double.plait")
    ...     pl.load(folder + "/double.plait").outputs
    ('y',)
    """
    if not isinstance(path, str | os.PathLike):
        raise ParseError(f"a {type(path).__name__} is no path", fix="pass that of a model file")
    head = _head(Path(path))
    if PLANS.starts(head):
        raise ParseError(
            "this is a saved plan, not a graph", at=os.fspath(path), fix="use plait.load_plan(path)"
        )
    if Path(path).suffix == _WEIGHTS:
        raise ParseError(
            "these are weights, not a graph",
            at=os.fspath(path),
            fix="use plait.with_weights(graph, plait.load_weights(path))",
        )
    if is_native(head):
        return load_native(path)
    if Path(path).suffix == ".net":
        return load_lightnet(path)
    return _load_json(path) if is_lightnet(head) else load_onnx(path)


def _load_json(path: str | os.PathLike[str]) -> Graph:
    """Return the graph in one of the two kinds of models that are JSON."""
    content, _ = content_of(path, "model", ParseError)
    return load_cvm(path).graph if is_symbol(content) else load_lightnet(path)


def _head(path: Path) -> bytes:
    """Return a file's first bytes."""
    with reading(path) as file:
        head = file.read(len(GRAPHS.magic))
    if not head:
        raise ParseError("the file is empty", at=str(path), fix="save or download it again")
    return head


def save(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write a graph to a `.plait` file, an ONNX model or one of LightNet's, as its suffix says.

    A file of that name is replaced, wholly or not at all; whoever has it open keeps the old one.
    A `.plait` file holds any graph. An ONNX model holds what other tools understand, in the oldest
    opset that has it: no nested graphs, attributes as 32-bit floats, and what is not ONNX's by its
    name, `acme.Fetch` as Fetch of the domain `acme`.
    LightNet's JSON and text form, ``.net``, with weights beside them that end in ``.wts``, hold
    convolutional networks.

    Raises
    ------
    GraphError
        If the name ends in none of ``.plait``, ``.onnx``, ``.json`` and ``.net``, the graph breaks
        an invariant or holds what cannot be written, or the file cannot be.
    """
    if not isinstance(graph, Graph):
        raise GraphError(
            f"a {type(graph).__name__} is no graph",
            fix="save what load(path) or GraphBuilder.build() returned",
        )
    if not isinstance(path, str | os.PathLike):
        raise GraphError(f"a {type(path).__name__} is no path", fix="pass that of a file to write")
    suffix = Path(path).suffix
    if suffix == _WEIGHTS:
        raise GraphError(
            "a safetensors file holds no graph",
            at=os.fspath(path),
            fix="use plait.save_weights(plait.weights_of(graph), path)",
        )
    if suffix not in _WRITERS:
        raise GraphError(
            f"plait does not write {suffix or 'files without a suffix'}",
            at=os.fspath(path),
            fix="choose a name that ends in .plait, .onnx, .json or .net",
        )
    _WRITERS[suffix](graph, path)
