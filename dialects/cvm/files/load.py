"""cvm models: a symbol, which holds the graph, and a file of parameters.

Loading checks the same rules as cvm, with the same two kinds of errors: LogicError if the model is
at fault, RuntimeFailureError if it cannot be read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ....graph.core.check import check
from ....graph.core.ir import Graph
from ....graph.formats.sources import Source, read_content
from ....graph.values.errors import RuntimeFailureError
from ....graph.values.tensor import Array
from ..precision import check_parameters, infer_precision
from .graph import DATA, make_graph
from .params import read_params
from .storage import sum_pools
from .symbol import fail, parse_symbol, reject

__all__ = ["CvmModel", "Source", "load_cvm", "load_symbol"]


@dataclass(frozen=True)
class CvmModel:
    graph: Graph
    """A graph of int32 cvm operators with declared precisions. A repeated output, or one that is a
    variable, is copied by an Identity."""
    precisions: Mapping[str, int]
    """Inferred bits of every tensor."""
    storage_bytes: int
    """Bytes of the tensors, by the model's storage table."""
    version: str
    postprocess: str


SUFFIX = ".params"
"""Suffix of the file of parameters next to a symbol."""


def load_cvm(symbol: Source, params: Source | None = None) -> CvmModel:
    """Load a cvm model, with its parameters as constants and ``data`` as its only input.

    Parameters
    ----------
    symbol, params : bytes or path
        The content of the two files, or their paths. By default the parameters are the file next
        to the symbol that ends in ``.params``.

    Raises
    ------
    LogicError
        If the model breaks a rule of cvm.
    RuntimeFailureError
        If it cannot be read, or a file is missing.
    GraphError
        If its operators do not fit together.
    """
    if params is None:
        params = _find_params(symbol)
    content, at = read_content(params, "params", RuntimeFailureError)
    return _bind(load_symbol(symbol), content, at)


def _find_params(symbol: Source) -> Path:
    if not isinstance(symbol, str | os.PathLike):
        raise RuntimeFailureError("a symbol has parameters", fix="pass them too, or two paths")
    path = Path(symbol).with_suffix(SUFFIX)
    if not path.is_file():
        raise RuntimeFailureError(
            f"there are no parameters in {path}",
            at=os.fspath(symbol),
            fix="put them there, or say where: plait.load(symbol, parameters=path), or --params",
        )
    return path


def load_symbol(symbol: Source) -> CvmModel:
    """Load the cvm model `symbol` without parameters: all variables are inputs of the graph.

    Raises LogicError, RuntimeFailureError, GraphError like `load_cvm`.
    """
    content, at = read_content(symbol, "symbol", RuntimeFailureError)
    found = parse_symbol(content, at)
    graph = make_graph(found, at)
    storage = sum_pools(found.storage_ids, found.shapes)
    return CvmModel(graph, infer_precision(graph), storage, found.version, found.postprocess)


def _bind(model: CvmModel, content: bytes, at: str) -> CvmModel:
    graph, variables = model.graph, set(model.graph.inputs)
    if DATA not in variables:
        fail(f"the model has no variable named {DATA!r}", at)
    arrays = read_params(content, at)
    for name, array in arrays.items():
        if name not in variables:
            fail(f"the model has no variable named {name!r}", at)
        wanted = graph.tensors[name].static_shape
        if array.shape != wanted:
            reject(f"parameter {name!r} is of the shape {array.shape}, not {wanted}", at)
    missing = [name for name in graph.inputs if name != DATA and name not in arrays]
    if missing:
        reject(f"the parameters {', '.join(missing[:9])} have not been loaded", at)
    constants = {name: _freeze(arrays[name]) for name in graph.inputs if name != DATA}
    bound = check(replace(graph, inputs=(DATA,), constants=constants))
    check_parameters(bound)
    return replace(model, graph=bound)


def _freeze(array: Array) -> Array:
    made = array.astype(np.int32)
    made.flags.writeable = False
    return made
