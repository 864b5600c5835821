"""Graphs read from files of any format, and written to them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from ..errors import GraphError, ParseError
from ..ir import Graph
from .container import PLANS
from .cvm import is_symbol, load_cvm
from .files import read_file, reading
from .lightnet import is_lightnet, load_lightnet, save_lightnet
from .native import is_native, load_native
from .native import save as save_native
from .onnx import load_onnx, save_onnx
from .registry import LONGEST_MAGIC, format_for, format_named, format_of, written_suffixes
from .sources import Source, content_of

_READERS: Mapping[str, Callable[[Source], Graph]] = {
    "plait": load_native,
    "onnx": load_onnx,
    "lightnet": load_lightnet,
    "cvm": lambda source: load_cvm(source).graph,
}
_WRITERS = {
    ".plait": save_native,
    ".onnx": save_onnx,
    ".json": save_lightnet,
    ".net": save_lightnet,
}
_WEIGHTS = ".safetensors"


def load(source: Source, *, format: str | None = None) -> Graph:
    """Return the graph in a `.plait` file, or a model of ONNX, LightNet or cvm, told by content.

    Other formats are those that were registered, or that installed packages offer. A file whose
    name ends in ``.net`` is in LightNet's text form. The weights of LightNet's lie beside the
    model, in a file that ends in ``.wts``, cvm's parameters in one that ends in ``.params``. Files
    are read whole: they may be changed, replaced or deleted afterwards.

    Parameters
    ----------
    source : path, bytes, or binary file object
        Of bytes, what lies beside the file is not there: weights in files of their own.
    format : str, optional
        ``"plait"``, ``"onnx"``, ``"lightnet"``, ``"cvm"``, or the name of a registered one,
        whatever content and suffix say.

    Raises
    ------
    ParseError
        If the file is missing, damaged or foreign, or uses what plait lacks; or if there is no such
        format.
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
    path = Path(source) if isinstance(source, str | os.PathLike) else None
    if path is None:  # a file object is read once
        source, at = content_of(source, "bytes", ParseError)
        head = source[:LONGEST_MAGIC]
    else:
        at, head = os.fspath(path), _head(path)
    if not head:
        raise ParseError("the file is empty", at=at, fix="save or download it again")
    suffix = Path(at).suffix
    own = format_of(head, suffix) if format is None else format_named(format)
    if own is not None:
        data = memoryview(source) if isinstance(source, bytes) else read_file(at)
        return own.load(data, path, at)
    return _READERS[_told(source, head, suffix, at) if format is None else format](source)


def _told(source: Source, head: bytes, suffix: str, at: str) -> str:
    """Return the name of the format of plait's that content says, or else the suffix."""
    if PLANS.starts(head):
        raise ParseError(
            "this is a saved plan, not a graph", at=at, fix="use plait.load_plan(path)"
        )
    if suffix == _WEIGHTS:
        raise ParseError(
            "these are weights, not a graph",
            at=at,
            fix="use plait.with_weights(graph, plait.load_weights(path))",
        )
    if is_native(head):
        return "plait"
    if suffix == ".net":
        return "lightnet"
    if not is_lightnet(head):
        return "onnx"
    return "cvm" if is_symbol(content_of(source, "model", ParseError)[0]) else "lightnet"


def _head(path: Path) -> bytes:
    """Return a file's first bytes."""
    with reading(path) as file:
        return file.read(LONGEST_MAGIC)


def save(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write a graph to a `.plait` file, an ONNX model or one of LightNet's, as its suffix says.

    A file of that name is replaced, wholly or not at all; whoever has it open keeps the old one.
    A `.plait` file holds any graph. An ONNX model holds what other tools understand, in the oldest
    opset that has it: no nested graphs, attributes as 32-bit floats, and what is not ONNX's by its
    name, `acme.Fetch` as Fetch of the domain `acme`.
    LightNet's JSON and text form, ``.net``, with weights beside them that end in ``.wts``, hold
    convolutional networks. Other suffixes are those of formats that were registered, or that
    installed packages offer.

    Raises
    ------
    GraphError
        If the name ends in none of these, the graph breaks an invariant or holds what cannot be
        written, or the file cannot be.
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
    if suffix in _WRITERS:
        _WRITERS[suffix](graph, path)
    elif (own := format_for(suffix)) is not None:
        own.save(graph, Path(path))
    else:
        *first, last = written_suffixes()
        raise GraphError(
            f"plait does not write {suffix or 'files without a suffix'}",
            at=os.fspath(path),
            fix=f"choose a name that ends in {', '.join(first)} or {last}",
        )
