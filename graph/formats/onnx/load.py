"""ONNX models: read with the `onnx` package, opsets 6 to 28, every operator in its newest form.

An error lists all missing operators at once, with the nodes that call them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from ...core.ir import Graph
from ...core.operator import is_operator
from ...values.errors import ParseError, UnknownOperatorError
from ...values.extras import get_install_command, import_extra
from ..files import open_file
from ..sources import Source, read_content
from ..unknown_operators import advise
from .expansion import expand
from .forms import has_tensors_alone
from .graphs import GraphReader, Model, format_names
from .nodes import DEFAULT_DOMAINS, iterate_nodes, read_operator_name
from .sequences import replace_sequences
from .tensors import TensorReader, text
from .upgrade import NEWEST_OPSET, OLDEST_OPSET, find_newest_name

_PROTOBUF_LIMIT = 2**31 - 1


def load_onnx(source: Source | Any) -> Graph:
    """Return the graph in the ONNX model `source`.

    Tensor names are those of the model; nodes without a name get one, such as ``Conv_12``.

    Parameters
    ----------
    source : path, bytes, binary file object, or onnx.ModelProto
        Data in files next to the model is only found by its path.

    Raises
    ------
    ParseError
        If the file is missing, damaged or not an ONNX model, or needs a feature that plait lacks.
        A missing operator is an `UnknownOperatorError` that names all of them.
    GraphError
        If its nodes do not fit together.
    """
    if is_onnx_model(source):
        return read_model(source, "model", alone=True)
    data, name = _read_content(source)
    return read_model(_parse(data, name), name, alone=not isinstance(source, str | os.PathLike))


def is_onnx_model(source: object) -> bool:
    """Return whether `source` is an `onnx.ModelProto`, without importing the package."""
    onnx = sys.modules.get("onnx")
    return onnx is not None and isinstance(source, onnx.ModelProto)


def read_model(model: Any, path: str | os.PathLike[str], *, alone: bool = False) -> Graph:
    """Return the graph in `model`, with external data next to `path`, unless it is `alone`.

    Raises
    ------
    ParseError, GraphError
        Like `load_onnx`.
    """
    _check_opset(model, str(path))
    opset = max(
        (entry.version for entry in model.opset_import if entry.domain in DEFAULT_DOMAINS),
        default=OLDEST_OPSET,
    )
    model = replace_sequences(expand(model, str(path)), opset)
    _check_operators(model, str(path))
    common = Model(str(path), opset, TensorReader(Path(path), alone=alone))
    return GraphReader(model.graph, common, Path(path).stem).graph()


def _read_content(source: Source) -> tuple[bytes, str]:
    """Return the bytes and name of the model `source`; files that are too large are refused."""
    if not isinstance(source, str | os.PathLike):
        data, name = read_content(source, "model", ParseError)
        _check_size(len(data), name)
        return data, name
    with open_file(source) as file:
        _check_size(os.fstat(file.fileno()).st_size, os.fspath(source))
        return file.read(), os.fspath(source)


def _check_size(nbytes: int, at: str) -> None:
    if nbytes > _PROTOBUF_LIMIT:
        raise ParseError(
            "the file is larger than 2 GB, which protobuf cannot read",
            at=at,
            fix="save the model with external data: onnx.save(..., save_as_external_data=True)",
        )


def _parse(data: bytes, at: str) -> Any:
    """Return the ModelProto in `data`, the file `at`; protobuf bounds its memory by its size."""
    missing = "reading ONNX models takes the package 'onnx'"
    onnx = import_extra("onnx", missing, get_install_command("onnx"), ParseError)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # protobuf's own error types differ between its implementations
        raise _not_onnx_error(at) from error
    if not model.HasField("graph"):
        raise _not_onnx_error(at)
    return model


def _not_onnx_error(at: str) -> ParseError:
    return ParseError(
        "neither a .plait file nor an ONNX model, or a damaged one",
        at=at,
        fix="pass a file that plait.save or an ONNX exporter wrote",
    )


def _check_opset(model: Any, at: str) -> None:
    versions = [entry.version for entry in model.opset_import if entry.domain in DEFAULT_DOMAINS]
    if not versions and any(node.domain in DEFAULT_DOMAINS for node in model.graph.node):
        versions = [1]
    for version in versions:
        readable = OLDEST_OPSET <= version <= NEWEST_OPSET
        if not readable and not (0 < version < OLDEST_OPSET and _is_as_now(model, version)):
            raise ParseError(
                f"the model uses opset {version}, plait reads {OLDEST_OPSET} to {NEWEST_OPSET}",
                at=at,
                fix="convert it with onnx.version_converter, or export it with another opset",
            )


def _is_as_now(model: Any, opset: int) -> bool:
    """Return whether operators of `model`, in an old `opset`, are those of the oldest one read."""
    from onnx import defs

    names = {text(node.op_type) for node in iterate_nodes(model.graph)}
    try:
        return all(
            defs.get_schema(name, opset).since_version
            == defs.get_schema(name, OLDEST_OPSET).since_version
            for name in names
        )
    except defs.SchemaError:  # one of them is not of that opset, or not of ONNX at all
        return False


def _check_operators(model: Any, at: str) -> None:
    """Raise UnknownOperatorError, about the file `at`, naming all unknown operators of `model`."""
    missing: dict[str, list[str]] = {}
    for node in iterate_nodes(model.graph):
        name = read_operator_name(node)
        if name != "Constant" and not is_operator(find_newest_name(name)):
            missing.setdefault(name, []).append(text(node.name or next(iter(node.output), "")))
    if missing:
        by_count = sorted(missing.items(), key=lambda item: -len(item[1]))
        counted = (f"{op} ({format_names(names, 3)})" for op, names in by_count)
        fix = advise(
            missing, "define them with @plait.operator(name=...), or export the model without them"
        )
        if not all(map(has_tensors_alone, missing)):
            fix = (
                "export the model with tensors in place of sequences, optional values and maps, "
                "such as Concat for a sequence that is joined, and Split for one of parts"
            )
        if model.functions:  # left over: they are of another opset than the model
            fix = "write out its functions: onnx.inliner.inline_local_functions(model, True)"
        raise UnknownOperatorError(
            f"operators that are not supported: {', '.join(counted)}", at=at, fix=fix
        )
