"""Weights by name: in safetensors files, and in graphs.

The weights of a graph are its constants and the initial values of its variables. For weights in
several files, a JSON file lists the file of each array:

{"metadata": {...}, "weight_map": {"name of an array": "name of a file beside this one", ...}}
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..core.check import check
from ..core.infer import infer_node, infer_shapes
from ..core.ir import VARIABLE, Graph, Node, make_call
from ..core.state import get_variable_spec, make_initial_value
from ..values.errors import GraphError, ParseError, ShapeError
from ..values.tensor import Array, TensorSpec, spec_of
from .files import read_file, replace_file
from .safetensors import pack_weights, read_weights
from .sources import decode_json

_SHOWN = 8
"""Limit of names in a message."""


def save_weights(
    weights: Mapping[str, Array],
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write `weights` by name to the safetensors file `path`, atomically.

    Parameters
    ----------
    weights : Mapping of str to array
        Arrays of booleans, integers, floats or complex64, of any shape.
    path : str or path
    metadata : Mapping of str to str, optional
        Text about the weights. Some readers require ``{"format": "pt"}``.

    Raises
    ------
    GraphError
        If the format cannot hold an array, a name or the metadata, or the file cannot be written.

    Examples
    --------
    >>> import tempfile, numpy as np, plait as pl
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pl.save_weights({"w": np.eye(2)}, folder + "/w.safetensors")
    ...     pl.load_weights(folder + "/w.safetensors")["w"].tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    replace_file(path, pack_weights(weights, metadata or {}))


def load_weights(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Return the arrays in the safetensors file `path` by name, read-only.

    For weights in several files, pass the index: ``model.safetensors.index.json``. Files may be
    changed, replaced or deleted afterwards.

    Raises
    ------
    ParseError
        If a file is missing, damaged or foreign, or holds a dtype that plait does not support.
    ShapeError
        If a file holds bfloat16 or 8-bit floats and `ml_dtypes` is not installed.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import numpy as np
    >>> import plait as pl
    >>> with TemporaryDirectory() as folder:
    ...     path = f"{folder}/weights.safetensors"
    ...     pl.save_weights({"w": np.ones(2, "float32")}, path)
    ...     weights = pl.load_weights(path)
    >>> weights
    {'w': array([1., 1.], dtype=float32)}
    """
    if not isinstance(path, str | os.PathLike):
        raise ParseError(f"expected a path, got {type(path).__name__}", fix="pass that of a file")
    if os.fspath(path).endswith(INDEX):
        return load_shards(path)
    return read_weights(read_file(path), os.fspath(path))[0]


def weights_of(graph: Graph) -> dict[str, Array]:
    """Return the constants of `graph`, and its variables' initial values, by name; read-only.

    Variables with a computed initial value are left out, and so are nested graphs.

    Examples
    --------
    >>> import numpy as np
    >>> import plait as pl
    >>> b = pl.GraphBuilder("layer")
    >>> w = b.constant(np.eye(2, dtype="float32"), "w")
    >>> b.output("y", b.op("MatMul", b.input("x", "float32", (1, 2)), w))
    >>> list(pl.weights_of(b.build()))
    ['w']
    """
    initial = {node.name: node.attributes["initial"] for node in graph.nodes if node.op == VARIABLE}
    given = {
        name: value.constants[value.outputs[0]]
        for name, value in initial.items()
        if value.outputs[0] in value.constants
    }
    return {**graph.constants, **given}


def with_weights(graph: Graph, weights: Mapping[str, Array]) -> Graph:
    """Return `graph` with some `weights` replaced, by name.

    Parameters
    ----------
    graph : Graph
    weights : Mapping of str to array
        Names of constants and variables, with arrays of their shapes. Arrays are converted if that
        changes no value, such as from bfloat16 to float32.

    Raises
    ------
    GraphError
        If the graph has no such weight, or other shapes in the graph would change.
    ShapeError
        If an array does not fit the weight that it replaces.

    Examples
    --------
    >>> import numpy as np, plait as pl
    >>> b = pl.GraphBuilder("scale")
    >>> x, w = b.input("x", "float32", (2,)), b.constant(np.float32([1, 1]), "w")
    >>> b.output("y", b.op("Mul", x, w))
    >>> pl.weights_of(pl.with_weights(b.build(), {"w": np.float32([2, 3])}))["w"].tolist()
    [2.0, 3.0]
    """
    # A planned graph has lost the initial values.
    if graph.variables:
        raise GraphError(
            "variables are not nodes in the graph of a plan",
            at=graph.name,
            fix="pass what was planned",
        )
    variables = {node.name: node for node in graph.nodes if node.op == VARIABLE}
    _check_names(graph, variables, weights)
    made = dict(variables)
    constants = dict(graph.constants)
    for name, array in weights.items():
        if name in variables:
            like = get_variable_spec(variables[name])
            initial = make_initial_value(_fit(name, array, like))
            attributes = {**variables[name].attributes, "initial": initial}
            made[name] = replace(variables[name], attributes=attributes)
        else:
            constants[name] = _fit(name, array, graph.tensors[name])
    nodes = tuple(made.get(node.name, node) for node in graph.nodes)
    changed = replace(graph, nodes=nodes, constants=constants)
    _check_shapes(graph, changed, [name for name in weights if name not in variables])
    # Shapes have not changed, but an operator may refuse a value.
    return check(changed)


def _check_names(graph: Graph, variables: Iterable[str], weights: Iterable[str]) -> None:
    known = dict.fromkeys((*variables, *graph.constants))
    unknown = [name for name in weights if name not in known]
    if unknown:
        raise GraphError(
            f"the graph has no weights named {_list_names(unknown)}",
            at=graph.name,
            fix=f"pass those of weights_of(graph): {_list_names(list(known)) or 'there are none'}",
        )


def _list_names(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown


def _fit(name: str, array: Array, like: TensorSpec) -> Array:
    given = np.asarray(array)
    if given.shape != like.shape or not np.can_cast(given.dtype, like.dtype, "safe"):
        raise ShapeError(
            f"the weight is {like}, the array {spec_of(given)}",
            at=f"weight {name!r}",
            fix="pass an array of that shape, converted by astype() if it may lose digits",
        )
    if given.dtype == like.dtype and not given.flags.writeable:
        return given  # from a file, most often
    made = given.astype(like.dtype, order="C")
    made.flags.writeable = False
    return made


def _check_shapes(before: Graph, after: Graph, names: Sequence[str]) -> None:
    """Raise GraphError if new values of `names` change other specs between `before` and `after`."""
    for name in names:
        for node in before.consumers[name]:
            # A constant may be a shape or axes, which the specs of outputs follow.
            if _infer_specs(before, node) != _infer_specs(after, node):
                raise GraphError(
                    f"with another {name!r} its outputs have other shapes or dtypes",
                    at=str(node),
                    fix="leave that constant out, or build the graph with its new value",
                )
    # Lists of lengths are followed from constants to nodes further on.
    lists = [name for name in names if before.constants[name].dtype.kind in "iu"]
    if lists and infer_shapes(before).tensors != infer_shapes(after).tensors:
        raise GraphError(
            f"with other values of {_list_names(lists)} tensors have other shapes",
            at=before.name,
            fix="leave these constants out, or build the graph with their new values",
        )


def _infer_specs(graph: Graph, node: Node) -> tuple[TensorSpec, ...]:
    return infer_node(node, make_call(node, graph.tensors, graph.constants))


INDEX = ".safetensors.index.json"
"""The end of the names of such files."""

_FIX = "download it again, with all files that belong to it"


def load_shards(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Return the arrays of the index `path`, by name; ParseError if one is missing or elsewhere."""
    folder, at = Path(path).parent, os.fspath(path)
    places = _read_index(path, at)
    files = {
        file: read_weights(read_file(folder / file), str(folder / file))[0]
        for file in dict.fromkeys(places.values())
    }
    for name, file in places.items():
        if name not in files[file]:
            raise ParseError(f"the file {file!r} has no array {name!r}", at=at, fix=_FIX)
    return {name: files[file][name] for name, file in places.items()}


def _read_index(path: str | os.PathLike[str], at: str) -> dict[str, str]:
    data = read_file(path)
    index = decode_json(lambda: bytes(data).decode(), at, ParseError, _FIX, "the index is damaged")
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict) or not all(isinstance(f, str) for f in places.values()):
        raise ParseError("there is no weight_map of files by name", at=at, fix=_FIX)
    for file in places.values():
        # The index is not trusted: files outside of its folder are not read.
        if file in ("", ".", "..") or "\0" in file or set(file) & {"/", "\\"}:
            raise ParseError(f"{file!r} is not a file beside the index", at=at, fix=_FIX)
    return places
