"""Read graphs from files of any format, and write them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from ..core.ir import Graph
from ..values.errors import GraphError, ParseError
from .container import PLANS
from .files import open_file
from .native import is_native, load_native
from .native import save as save_native
from .onnx import is_onnx_model, load_onnx, save_onnx
from .registry import (
    LONGEST_MAGIC,
    Format,
    detect_format,
    find_format,
    find_format_of_file,
    find_format_of_object,
    find_format_of_suffix,
    list_written_suffixes,
    no_parameters_error,
)
from .sources import Source, is_file, read_content

_READERS: Mapping[str, Callable[[Source], Graph]] = {"plait": load_native, "onnx": load_onnx}
_WRITERS: Mapping[str, Callable[[Graph, str | os.PathLike[str]], None]] = {
    ".plait": save_native,
    ".onnx": save_onnx,
}
_WEIGHTS = ".safetensors"


def load(
    source: Source | Any,
    *,
    format: str | None = None,
    parameters: str | os.PathLike[str] | None = None,
    feed: Iterable[str] = (),
) -> Graph:
    """Return the graph in `source`, a `.plait` file or model of another format, found by content.

    Other formats are ONNX, those of plait's dialects (docs/formats.md), registered ones, and those
    that installed packages offer. If a format has a separate file of parameters, it is expected
    beside the model. Files are read whole: they may be changed, replaced or deleted afterwards.

    Parameters
    ----------
    source : path, bytes, binary file object, or model in memory
        For bytes, files beside the model, such as separate weights, are not available. Models in
        memory are an `onnx.ModelProto`, a `torch.export.ExportedProgram`, and objects of classes
        for which a format is registered; they are not modified.
    format : str, optional
        ``"plait"``, ``"onnx"``, or the name of a registered format; overrides content and suffix.
    parameters : path, optional
        The file of parameters, if it is not beside the model.
    feed : iterable of str, optional
        Constants to feed with each item, such as initializers of an ONNX model that are among its
        inputs. They become inputs of the graph; otherwise plans compute with their values.

    Raises
    ------
    ParseError
        If the file is missing, damaged or foreign, or uses something that plait does not support;
        if there is no such format, or the format has no separate file of parameters.
    GraphError
        If the graph in it is not consistent, or has no constant that is to be fed.
    RuntimeFailureError
        If it is an exact integer model that cannot be read.

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
    graph = _load(source, format, parameters)
    names = [feed] if isinstance(feed, str) else list(feed)
    if not names:
        return graph
    from ..building.editing import feed_constants  # brings the passes

    return feed_constants(graph, names)


def _load(
    source: Source | Any, format: str | None, parameters: str | os.PathLike[str] | None
) -> Graph:
    if not is_file(source):
        return _from_object(source, format, parameters is not None)
    path = Path(source) if isinstance(source, str | os.PathLike) else None
    content: bytes | Path
    if path is None:  # a file object is read once
        content, at = read_content(source, "bytes", ParseError)
        head = content[:LONGEST_MAGIC]
    else:
        content, at, head = path, os.fspath(path), _read_head(path)
    # Some readers would take it for an empty model.
    if not head:
        raise ParseError("the file is empty", at=at, fix="save or download it again")
    suffix = Path(at).suffix
    found = _choose_format(content, head, suffix, at) if format is None else find_format(format)
    if isinstance(found, Format):
        beside = None if parameters is None else Path(parameters)
        return found.load(content, path, at, beside)
    name = found or format
    assert name is not None
    if parameters is not None:
        raise no_parameters_error(name, at)
    return _READERS[name](content)


def _from_object(source: object, format: str | None, has_parameters: bool) -> Graph:
    at = type(source).__name__
    is_onnx = is_onnx_model(source)
    found = None if is_onnx else find_format_of_object(source)
    name = "onnx" if is_onnx else None if found is None else found.name
    if name is None:
        raise ParseError(
            f"expected a path, bytes, an open file, or a model of a known package, got {at}",
            fix="pass one of these, such as an onnx.ModelProto or a torch.export.ExportedProgram",
        )
    if format not in (None, name):
        raise ParseError(f"a {at} is of format {name!r}", fix="leave format= out")
    if has_parameters:
        raise no_parameters_error(name, at)
    return load_onnx(cast(Any, source)) if found is None else found.load_object(source)


def _choose_format(source: bytes | Path, head: bytes, suffix: str, at: str) -> Format | str:
    # From certain to likely: magic, suffix, sniffing. ONNX remains, as it has no magic.
    if (registered := find_format_of_file(head, suffix)) is not None:
        return registered
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
    return detect_format(source, at, suffix) or "onnx"


def _read_head(path: Path) -> bytes:
    with open_file(path) as file:
        return file.read(LONGEST_MAGIC)


def save(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write `graph` to a `.plait` file, an ONNX model or another format, by the suffix of `path`.

    An existing file is replaced atomically; processes that have it open keep the old one. A
    `.plait` file holds any graph. An ONNX model holds what other tools understand, in the oldest
    opset that has it: no nested graphs, float attributes with 32 bits, and operators that are not
    ONNX's by name, `acme.Fetch` as Fetch of the domain `acme`. Other suffixes are those of plait's
    dialects (docs/formats.md), of registered formats, and of formats that installed packages offer.

    Raises
    ------
    GraphError
        If the name has none of these suffixes, the graph breaks an invariant, something in the
        graph cannot be written, or the file cannot.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import plait as pl
    >>> b = pl.GraphBuilder("relu")
    >>> b.output("y", b.op("Relu", b.input("x", "float32", (2,))))
    >>> graph = b.build()
    >>> with TemporaryDirectory() as folder:
    ...     pl.save(graph, f"{folder}/relu.plait")
    ...     loaded = pl.load(f"{folder}/relu.plait")
    >>> loaded == graph
    True
    """
    if not isinstance(graph, Graph):
        raise GraphError(
            f"expected a graph, got {type(graph).__name__}",
            fix="save what load(path) or GraphBuilder.build() returned, or a pipeline's graph",
        )
    if not isinstance(path, str | os.PathLike):
        raise GraphError(
            f"expected a path, got {type(path).__name__}", fix="pass that of a file to write"
        )
    suffix = Path(path).suffix
    if suffix == _WEIGHTS:
        raise GraphError(
            "a safetensors file holds no graph",
            at=os.fspath(path),
            fix="use plait.save_weights(plait.weights_of(graph), path)",
        )
    if suffix in _WRITERS:
        _WRITERS[suffix](graph, path)
    elif (own := find_format_of_suffix(suffix)) is not None:
        own.save(graph, Path(path))
    else:
        *first, last = list_written_suffixes()
        raise GraphError(
            f"plait does not write {suffix or 'files without a suffix'}",
            at=os.fspath(path),
            fix=f"choose a name that ends in {', '.join(first)} or {last}",
        )
