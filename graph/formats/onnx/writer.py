"""Graphs as ONNX models, for other tools and for devices that pass subgraphs to these.

Nodes of nested graphs are written too. Graphs for rows, and whole ones, become nodes of the
surrounding graph: ONNX has neither.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...core.check import check
from ...core.ir import Graph, Node
from ...core.nested import list_graphs, walk_nodes
from ...core.printing import format_count
from ...core.whole import WHOLE
from ...decompositions.rules import decompose, decompositions
from ...operators.control import CONTROL_FLOW, list_uncaptured
from ...operators.each import EACH
from ...passes.rewriting import Rewriter
from ...values.dtypes import name_of
from ...values.errors import GraphError
from ...values.extras import get_install_command, import_extra
from ...values.names import Names
from ...values.tensor import Array, TensorSpec
from ..container import ALIGNMENT
from ..files import replace_file
from .forms import (
    ELEMENT_TYPE_OF,
    add_attributes,
    find_own_refusal,
    find_refusal,
    split_name,
    to_tensor_proto,
)
from .upgrade import NEWEST_OPSET

OLDEST_WRITTEN = 21
IR_VERSION = 10
"""The newest that ONNX Runtime reads in all versions that know opset 21."""

PRODUCER = "plait"
EMBEDDED_BYTES = 1 << 30
"""With more bytes of constants, all go to a file next to the model; protobuf ends at 2 GB."""

MAX_LISTED = 10


def to_onnx(graph: Graph, *, opset: int | None = None, outside: Collection[str] = ()) -> Any:
    """Return `graph` as an ONNX model (`onnx.ModelProto`).

    An operator that ONNX does not have is written if its name has a dot: `acme.Fetch` becomes Fetch
    of the domain `acme`. Tools other than plait must know it. The graphs of `GraphBuilder.each` are
    written for all rows of an item, whatever batches they are run in here.

    Parameters
    ----------
    opset : int, optional
        The version of the operators, from 21 to the newest that plait and `onnx` know. When left
        out it is the oldest that can express the graph, which most other tools read.
    outside : collection of str
        Constants of which the model has dtype and shape only: its user provides them.

    Raises
    ------
    GraphError
        If nodes cannot be expressed: Python functions without a name of their own, operators that
        ONNX or the opset lacks or defines otherwise. The message lists them with the reasons.
    """
    onnx = _import_onnx()
    graph = inline_rows(graph)
    # An installed package newer than plait may know operators that mean something else by now.
    newest = min(NEWEST_OPSET, onnx.defs.onnx_opset_version())
    version = _choose_version(graph, opset, newest)
    reasons = list(_list_reasons(graph, version))
    if reasons:
        raise _unwritable_error(reasons, graph, is_newest=version == newest)
    model = onnx.ModelProto(ir_version=IR_VERSION, producer_name=PRODUCER)
    model.opset_import.add(domain="", version=version)
    for domain, number in sorted(_list_domain_versions(graph).items()):
        model.opset_import.add(domain=domain, version=number)
    made = model.graph  # filled in place: a message that is put into another one is copied
    made.name = graph.name
    made.input.extend(to_value_proto(name, graph.tensors[name]) for name in graph.inputs)
    made.output.extend(to_value_proto(name, graph.tensors[name]) for name in graph.outputs)
    own = {name: name for name in graph.tensors}
    writer = _Writer(Names((*graph.tensors, *(path for path, _, _ in walk_nodes(graph)))))
    for node in graph.nodes:
        writer.add(made.node, node, own, node.name)
    for name, array in graph.constants.items():
        is_outside = name in outside
        made.initializer.append(
            _refer_to_file(name, array, {"location": "outside"})
            if is_outside
            else to_tensor_proto(name, array)
        )
    return model


def save_onnx(graph: Graph, path: str | os.PathLike[str], *, opset: int | None = None) -> None:
    """Write `graph` to an ONNX model at `path`, in `opset`, by default the oldest that can have it.

    Constants of more than 1 GiB in all go to a file of the same name with the suffix ``.data``.

    Raises
    ------
    GraphError
        If the graph breaks an invariant, cannot be expressed in ONNX, or the file cannot be
        written.
    """
    target = Path(path)
    if graph.precisions:
        raise GraphError(
            f"ONNX has no place for declared precisions: {', '.join(sorted(graph.precisions))}",
            at=str(target),
            fix="save to a .plait file",
        )
    graph = inline_rows(check(graph))
    beside = _lay_out(graph.constants)
    model = to_onnx(graph, opset=opset, outside=beside)
    if beside:
        data = target.with_name(f"{target.name}.data")
        for tensor in model.graph.initializer:
            offset = beside[tensor.name]
            array = graph.constants[tensor.name]
            where = {"location": data.name, "offset": offset, "length": array.nbytes}
            tensor.CopyFrom(_refer_to_file(tensor.name, array, where))
        # The data first: where the new model is found, its constants are there, too.
        replace_file(data, _pad(graph.constants[name] for name in beside))
    replace_file(target, [model.SerializeToString()])


def _list_domain_versions(graph: Graph) -> dict[str, int]:
    versions: dict[str, int] = {}
    for _, _, node in walk_nodes(graph):
        domain, _ = split_name(node.op)
        if domain:
            versions[domain] = max(versions.get(domain, 1), node.operator.version)
    return versions


def _import_onnx() -> Any:
    missing = "writing ONNX models takes the package 'onnx'"
    return import_extra("onnx", missing, get_install_command("onnx"), GraphError)


def _choose_version(graph: Graph, opset: int | None, newest: int) -> int:
    if opset is None:
        # The oldest that will do: most readers know it.
        known = range(OLDEST_WRITTEN, newest + 1)
        opset = next(
            (version for version in known if not any(_list_reasons(graph, version))), newest
        )
    elif not OLDEST_WRITTEN <= opset <= newest:
        raise GraphError(
            f"plait does not write opset {opset}",
            fix=f"choose one from {OLDEST_WRITTEN} to {newest}",
        )
    return opset


def _unwritable_error(reasons: Sequence[str], graph: Graph, *, is_newest: bool) -> GraphError:
    listed = "\n    ".join(reasons[:MAX_LISTED])
    more = len(reasons) - MAX_LISTED
    return GraphError(
        f"{format_count(len(reasons), 'part')} of the graph cannot be written as ONNX:\n"
        f"    {listed}" + (f"\n    and {more} more" if more > 0 else ""),
        at=f"graph {graph.name!r}",
        fix="save to a .plait file"
        + ("" if is_newest else ", choose a newer opset")
        + ", or leave these parts out",
    )


def _list_reasons(graph: Graph, opset: int) -> Iterator[str]:
    """Yield nodes and tensors of `graph` that `opset` cannot express, each with the reason."""
    for node in graph.nodes:
        for nested in list_graphs(node):
            yield from (f"in {node.name!r}, {reason}" for reason in _list_reasons(nested, opset))
        inputs, outputs = (
            [graph.tensors[name] if name else None for name in names]
            for names in (list_uncaptured(node), node.outputs)
        )
        # An operator with a domain of its own is in no opset: its reader has to know it.
        is_own = bool(split_name(node.op)[0])
        reason = find_own_refusal(node) if is_own else find_refusal(node, inputs, outputs, opset)
        if reason is not None:
            yield f"{node.name!r}: {reason}"
    for name, spec in graph.tensors.items():
        dtype = name_of(spec.dtype)
        if dtype not in ELEMENT_TYPE_OF:
            yield f"tensor {name!r}: ONNX has no {dtype}"


def _refer_to_file(name: str, array: Array, where: Mapping[str, object]) -> Any:
    from onnx import StringStringEntryProto, TensorProto

    return TensorProto(
        name=name,
        dims=array.shape,
        data_type=ELEMENT_TYPE_OF[array.dtype.name],
        data_location="EXTERNAL",
        external_data=[StringStringEntryProto(key=k, value=str(v)) for k, v in where.items()],
    )


def _lay_out(constants: Mapping[str, Array]) -> dict[str, int]:
    """Return the offset of each of the `constants` in the file of data; empty without one."""
    if sum(array.nbytes for array in constants.values()) <= EMBEDDED_BYTES:
        return {}
    offsets, end = {}, 0
    for name, array in constants.items():
        offsets[name] = end
        # Readers map the file: each constant begins where any of their pages could.
        end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    return offsets


def _pad(arrays: Iterator[Array]) -> Iterator[bytes]:
    for array in arrays:
        # ONNX has the low byte first on every machine.
        yield array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        yield bytes(-array.nbytes % ALIGNMENT)


_INLINED = EACH, WHOLE


def inline_rows(graph: Graph) -> Graph:
    """Return `graph` without `Each` and `Whole`, nested or not; if one row fails, all fail."""
    if all(node.op not in _INLINED for _, _, node in walk_nodes(graph)):
        return graph
    rewriter = Rewriter(replace(graph, nodes=tuple(map(_inline_inside, graph.nodes))))
    # Bodies of nested graphs were inlined before: this one has no such node inside.
    for node in rewriter.find(*_INLINED):
        (rule,) = decompositions()[node.op]
        made = decompose(rewriter, node, rule)
        assert made is not None, "it is the graph itself"
        rewriter.replace([node], made)
    return rewriter.result()


def _inline_inside(node: Node) -> Node:
    graphs = {k: inline_rows(v) for k, v in node.attributes.items() if isinstance(v, Graph)}
    return replace(node, attributes={**node.attributes, **graphs}) if graphs else node


def to_value_proto(name: str, spec: TensorSpec) -> Any:
    from onnx import TensorShapeProto, TypeProto, ValueInfoProto

    tensor = TypeProto.Tensor(elem_type=ELEMENT_TYPE_OF[name_of(spec.dtype)])
    if spec.shape is not None:
        dims = [
            TensorShapeProto.Dimension(dim_value=dim)
            if isinstance(dim, int)
            else TensorShapeProto.Dimension(dim_param=dim)
            for dim in spec.shape
        ]
        tensor.shape.CopyFrom(TensorShapeProto(dim=dims))
    return ValueInfoProto(name=name, type=TypeProto(tensor_type=tensor))


def _list_inputs(node: Node, names: Mapping[str, str]) -> list[str]:
    """Return the `names` of inputs of `node` in the model, without absent ones at the end.

    ONNX allows empty names there, but some kernels of ONNX Runtime 1.32 (DFT, LayerNormalization)
    count the names and read an input that is absent, which ends the process.
    """
    found = [names.get(name, "") for name in list_uncaptured(node)]
    while found and not found[-1] and node.op not in CONTROL_FLOW:
        found.pop()
    return found


class _Writer:
    """Writes nodes; names of tensors are unique over all graphs."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def add(self, nodes: Any, node: Node, names: Mapping[str, str], path: str) -> None:
        """Add `node`, called `path`, with the `names` of tensors in the file, to NodeProtos."""
        domain, op_type = split_name(node.op)
        made = nodes.add(
            name=path,
            domain=domain,
            op_type=op_type,
            input=_list_inputs(node, names),
            output=[names.get(name, "") for name in node.outputs],
        )
        add_attributes(node, made.attribute)
        for key, value in node.attributes.items():
            if node.op in CONTROL_FLOW and isinstance(value, Graph):
                nested = self._nested(node, value, names, path)
                made.attribute.add(name=key, type="GRAPH", g=nested)

    def _nested(self, node: Node, graph: Graph, outer: Mapping[str, str], path: str) -> Any:
        from onnx import GraphProto

        captured = node.inputs[len(list_uncaptured(node)) :]
        own = graph.inputs[: len(graph.inputs) - len(captured)]
        known = zip(graph.inputs[len(own) :], captured, strict=True)
        names = {inner: outer[name] for inner, name in known}
        written = set[str]()
        for name in graph.tensors:
            if name not in names:
                names[name] = self._names.take(f"{path}/{name}")
        # Names of nested nodes are paths, as in reports: profilers identify nodes by name alone.
        made, outputs = GraphProto(name=graph.name or path), list[str]()
        for one in graph.nodes:
            self.add(made.node, one, names, f"{path}/{one.name}")
        for name in graph.outputs:  # each is written by a node of its own
            outputs.append(names[name])
            if name not in graph.producers or name in written:
                outputs[-1] = self._names.take(f"{names[name]}/out")
                made.node.add(op_type="Identity", input=[names[name]], output=outputs[-1:])
            written.add(name)
        made.input.extend(self._values(graph, own, [names[name] for name in own]))
        made.output.extend(self._values(graph, graph.outputs, outputs))
        made.initializer.extend(to_tensor_proto(names[n], a) for n, a in graph.constants.items())
        return made

    def _values(self, graph: Graph, tensors: Sequence[str], names: Sequence[str]) -> list[Any]:
        pairs = zip(names, tensors, strict=True)
        return [to_value_proto(name, graph.tensors[tensor]) for name, tensor in pairs]
