"""LightNet's files: a model in JSON or its text form, its weights in text, as a graph.

A tensor made by `create` is a constant if weights or the file itself give its value; if LightNet
fills it at random, or its file is missing, it is an input of the graph. Unread tensors and printed
ones are outputs.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterable
from pathlib import Path

from ...graph.building.builder import GraphBuilder
from ...graph.core.ir import Graph, Node
from ...graph.formats.assembly import locate_errors
from ...graph.formats.sources import Source, read_content
from ...graph.values.errors import ParseError, UnknownOperatorError
from ...graph.values.names import Names
from . import arithmetic, creation, detection, movement
from .entries import Entry, fail, read_entries
from .statement import Reading, Statement, check_arguments, find_rule
from .weights import read_weights

__all__ = ["Source", "arithmetic", "creation", "detection", "load_lightnet", "movement"]


def load_lightnet(
    model: Source, weights: Source | None = None, inputs: Iterable[str] = ()
) -> Graph:
    """Load the LightNet model `model`, in JSON or in its text form.

    Parameters
    ----------
    model : bytes or path
        The content of the file, or its path.
    weights : bytes or path, optional
        Likewise for the weights; by default the file next to the model that ends in ``.wts``, if it
        exists. Tensors that the model does not create are ignored with a warning.
    inputs : iterable of str, optional
        Tensors to feed even if the files give their values.

    Raises
    ------
    ParseError
        If a file is missing, damaged, or uses features that plait lacks.
    GraphError
        If the operators do not fit together.
    """
    content, at = read_content(model, "model", ParseError)
    if weights is None and isinstance(model, str | os.PathLike):
        beside = Path(model).with_suffix(".wts")
        weights = beside if beside.is_file() else None
    arrays = {} if weights is None else read_weights(*read_content(weights, "weights", ParseError))
    entries = read_entries(content, at)
    _check_known(entries, at)
    created = {tensor for entry in entries for tensor in _list_created(entry)}
    fed = set(inputs)
    if not fed <= created:
        fail(f"{min(fed - created)!r} cannot be fed: the file does not create it", at)
    for name in arrays.keys() - created:
        warnings.warn(f"weights of {name!r} are passed over: {at} does not create it", stacklevel=2)
    taken = {one for e in entries for one in (e.name, *e.outputs.values(), *e.inputs.values())}
    stem = Path(model).stem if isinstance(model, str | os.PathLike) else "lightnet"
    reading = Reading(GraphBuilder(stem), Names(taken), arrays, fed)
    for entry in entries:
        _write(entry, reading, at)
    return _build_graph(reading, entries, at)


def _check_known(entries: Collection[Entry], at: str) -> None:
    unknown = sorted({entry.optype for entry in entries if find_rule(entry.optype) is None})
    if unknown:
        raise UnknownOperatorError(
            f"operators of LightNet's that plait does not know: {', '.join(unknown)}",
            at=at,
            fix="use the file that LightNet compiled this one from, without a target",
        )


def _list_created(entry: Entry) -> tuple[str, ...]:
    is_create = find_rule(entry.optype) is find_rule("create")
    return tuple(entry.outputs.values()) if is_create else ()


def _write(entry: Entry, reading: Reading, at: str) -> None:
    rule = find_rule(entry.optype)
    assert rule is not None, "all operators were looked up"
    check_arguments(entry, rule, at)
    node = Node(
        entry.name, entry.optype, tuple(entry.inputs.values()), tuple(entry.outputs.values())
    )
    with locate_errors(node, at):
        rule.write(Statement(entry, reading, at))


def _build_graph(reading: Reading, entries: Collection[Entry], at: str) -> Graph:
    """Return the graph that `reading` has collected from `entries` of the file `at`.

    Its outputs are the tensors that are printed or never read.
    """
    builder = reading.builder
    computed = {tensor for node in builder.nodes for tensor in node.outputs}
    for tensor in dict.fromkeys(reading.printed):
        public = tensor if tensor in computed else reading.names.take(f"{tensor}/printed")
        builder.output(public, tensor)
    written = (tensor for entry in entries for tensor in entry.outputs.values())
    for tensor in written:
        if tensor in computed and tensor not in reading.read:
            builder.output(tensor, tensor)
    if not builder.outputs:
        fail("nothing is computed that could be fetched", at)
    return builder.build()
