"""One node on its own: through shape inference and its kernel, and through the ONNX reference.

`run_node` binds the kernel as a device does and checks, beside returning the results, everything
that must hold for each kernel: only outputs and scratch are written, nothing is read from them
first, running again gives the same, declared in-place pairs are legal, and shape inference on
symbolic or unknown shapes agrees with the shapes that come out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import ceil, prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from plait.devices.device import scratch_name
from plait.devices.kernels.registry import find_kernel
from plait.devices.memory import ALIGNMENT, Arena, View, host_arena, host_view
from plait.devices.program import bind
from plait.graph.core.infer import get_cost, infer_node
from plait.graph.core.ir import Graph, Node
from plait.graph.core.operator import Call, find_operator
from plait.graph.operators.slicing import split_sizes
from plait.graph.values.dims import slice_range
from plait.graph.values.dtypes import is_extension
from plait.graph.values.tensor import TensorSpec, spec_of

AnyArray = NDArray[Any]
POISONS = (0xFF, 0x5A)
"""Bytes that buffers hold before a run: NaNs and minus ones, then ordinary numbers."""


def run_node(
    op: str,
    inputs: Sequence[AnyArray | None],
    attributes: Mapping[str, Any] | None = None,
    n_outputs: int = 1,
    constant: Collection[int] = (),
) -> list[AnyArray]:
    """Return what a node's kernel writes; `constant` are the inputs whose values infer may see."""
    graph = single_node_graph(op, inputs, attributes, n_outputs, constant)
    fed = {f"x{i}": x for i, x in enumerate(inputs) if x is not None and i not in constant}
    results = [_run(graph, fed, poison) for poison in POISONS]
    for first, second in zip(*results, strict=True):
        _check_equal(first, second, "the result depends on the buffer's old bytes")
    _check_in_place(graph, fed, results[0])
    _check_symbolic_inference(graph, fed)
    assert get_cost(graph, graph.nodes[0]).flops >= 0
    return results[0]


def trim(written: Sequence[AnyArray]) -> list[AnyArray]:
    """Return the results in a bounded operator's buffers; the last one lists their shapes."""
    *buffers, shapes = written
    lengths = iter(shapes.tolist())
    found = []
    for buffer in buffers:
        shape = [next(lengths) for _ in range(buffer.ndim)]
        found.append(buffer.reshape(-1)[: prod(shape)].reshape(shape))
    assert next(lengths, None) is None
    return found


def single_node_graph(
    op: str,
    inputs: Sequence[AnyArray | None],
    attributes: Mapping[str, Any] | None = None,
    n_outputs: int = 1,
    constant: Collection[int] = (),
) -> Graph:
    """Return a graph of one node: inputs x0, x1 and so on, outputs y0, y1 and so on."""
    operator = find_operator(op)
    names = tuple("" if x is None else f"x{i}" for i, x in enumerate(inputs))
    outputs = tuple(f"y{i}" for i in range(n_outputs))
    operator.check_arity(len(names), [bool(name) for name in names], n_outputs, op)
    node = Node("node", op, names, outputs, operator.complete(attributes or {}, op))
    given = {name: np.asarray(x) for name, x in zip(names, inputs, strict=True) if name}
    constants = {f"x{i}": _frozen(given[f"x{i}"]) for i in constant if f"x{i}" in given}
    tensors = {name: spec_of(x) for name, x in given.items()}
    call = Call(
        tuple(tensors[name] if name else None for name in names),
        tuple(constants.get(name) for name in names),
        node.attributes,
        n_outputs,
    )
    specs = infer_node(node, call)
    assert all(spec.is_static for spec in specs), f"{op}: shapes stay unknown: {specs}"
    tensors.update(zip(outputs, specs, strict=True))
    fed = tuple(name for name in given if name not in constants)
    return Graph("single", fed, outputs, (node,), tensors, constants)


def onnx_reference(
    op: str,
    inputs: Sequence[AnyArray | None],
    attributes: Mapping[str, Any] | None = None,
    n_outputs: int = 1,
    opset: int | None = None,
) -> list[AnyArray]:
    """Return what onnx.reference says; attributes are ONNX's own (`to` is a TensorProto type)."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    outputs = [f"y{i}" for i in range(n_outputs)]
    node = onnx.helper.make_node(op, names, outputs, **(attributes or {}))
    given = {name: np.asarray(x) for name, x in zip(names, inputs, strict=True) if name}
    infos = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape
        )
        for name, x in given.items()
    ]
    results = [onnx.helper.make_empty_tensor_value_info(name) for name in outputs]
    imports = [onnx.helper.make_opsetid("", opset or onnx.defs.onnx_opset_version())]
    graph = onnx.helper.make_graph([node], "single", infos, results)
    model = onnx.helper.make_model(graph, opset_imports=imports)
    with np.errstate(all="ignore"):
        return [np.asarray(y) for y in ReferenceEvaluator(model).run(None, given)]


def _run(
    graph: Graph,
    fed: Mapping[str, AnyArray],
    poison: int,
    overwritten: tuple[int, int] | None = None,
) -> list[AnyArray]:
    """Run the node on buffers full of poison; with `overwritten`, an output on an input's bytes."""
    node = graph.nodes[0]
    found = find_kernel(node.op, "cpu")
    assert found is not None, f"no kernel for {node.op}"
    scratch = found.scratch(graph.call(node), graph.output_specs(node)) if found.scratch else ()
    specs = {name: graph.tensors[name] for name in (*fed, *graph.outputs)}
    specs.update({scratch_name(node, i): spec for i, spec in enumerate(scratch)})
    arena, views = place(specs)
    if overwritten is not None:
        views[node.outputs[overwritten[0]]] = views[node.inputs[overwritten[1]]]
    program = bind(np, "cpu", graph, views, graph.constants)
    for _ in range(2):  # a bound program runs many times
        arena.buffer.fill(poison)
        for name, value in fed.items():
            views[name].array[...] = value
        constants = {name: value.copy() for name, value in graph.constants.items()}
        with np.errstate(all="ignore"):
            program()
        results = [views[name].array.copy() for name in node.outputs]
        written = {views[name].offset for name in (*specs.keys() - fed.keys(), *node.outputs)}
        _check_untouched(arena, views, written, fed, poison)
        for name, value in graph.constants.items():
            _check_equal(value, constants[name], "a constant was written")
    return results


def _check_equal(found: AnyArray, wanted: AnyArray, message: str) -> None:
    if is_extension(found.dtype):  # numpy's comparison knows only the NaNs of its own dtypes
        found, wanted = found.astype(np.float32), wanted.astype(np.float32)
    np.testing.assert_array_equal(found, wanted, message)


def place(specs: Mapping[str, TensorSpec]) -> tuple[Arena, dict[str, View]]:
    """Return an arena and views in it, with unused bytes between each two."""
    offsets, end = {}, ALIGNMENT
    for name, spec in specs.items():
        offsets[name] = end
        end = -(-(end + spec.nbytes + 1) // ALIGNMENT) * ALIGNMENT
    arena = host_arena(end)
    return arena, {name: host_view(arena, offsets[name], spec) for name, spec in specs.items()}


def _check_untouched(
    arena: Arena,
    views: Mapping[str, View],
    written: Collection[int],
    fed: Mapping[str, AnyArray],
    poison: int,
) -> None:
    untouched = np.ones(arena.nbytes, bool)
    for name, view in views.items():
        untouched[view.offset : view.offset + view.spec.nbytes] = False
        if name in fed and view.offset not in written:
            _check_equal(view.array, fed[name], f"input {name} was written")
    assert (arena.buffer[untouched] == poison).all(), "bytes outside the outputs were written"


def _check_in_place(graph: Graph, fed: Mapping[str, AnyArray], wanted: list[AnyArray]) -> None:
    node = graph.nodes[0]
    pairs = (*node.operator.inplace, *(node.operator.views if len(node.outputs) > 1 else ()))
    for output, index in pairs:
        if index >= len(node.inputs) or node.inputs[index] not in fed:
            continue
        if output < len(node.outputs) and (
            graph.tensors[node.inputs[index]] == graph.tensors[node.outputs[output]]
        ):
            for found, result in zip(
                _run(graph, fed, POISONS[0], (output, index)), wanted, strict=True
            ):
                _check_equal(found, result, f"in place on input {index}")


def _check_symbolic_inference(graph: Graph, fed: Mapping[str, AnyArray]) -> None:
    """Infer with every fed dimension a symbol, then with unknown ranks, and compare."""
    node, call = graph.nodes[0], graph.call(graph.nodes[0])
    symbols: dict[str, int] = {}

    def symbolic(name: str, spec: TensorSpec) -> TensorSpec:
        if name not in fed:
            return spec
        dims = {f"{name}_{axis}": length for axis, length in enumerate(spec.static_shape)}
        symbols.update(dims)
        return TensorSpec(spec.dtype, tuple(dims))

    def infer(change: Any) -> tuple[TensorSpec, ...]:
        changed = tuple(
            None if spec is None else change(name, spec)
            for name, spec in zip(node.inputs, call.inputs, strict=True)
        )
        return infer_node(node, Call(changed, call.values, call.attributes, call.n_outputs))

    def unknown(name: str, spec: TensorSpec) -> TensorSpec:
        return TensorSpec(spec.dtype, None) if name in fed else spec

    for change in (symbolic, unknown):
        for name, inferred in zip(node.outputs, infer(change), strict=True):
            exact = graph.tensors[name]
            assert inferred.dtype == exact.dtype, (inferred, exact)
            if inferred.shape is None or 0 in symbols.values():
                continue
            assert len(inferred.shape) == len(exact.static_shape), (inferred, exact)
            shape = tuple(
                length if dim == f"{name}.shape[{axis}]" else _evaluate(dim, symbols)
                for axis, (dim, length) in enumerate(
                    zip(inferred.shape, exact.static_shape, strict=True)
                )
            )
            assert shape == exact.shape, f"inferred {inferred} with {symbols}, but it is {exact}"


def _evaluate(dim: int | str, symbols: Mapping[str, int]) -> int:
    """Return the length that a symbolic dimension stands for."""
    scope = {
        "__builtins__": {},
        "ceil": ceil,
        "max": max,
        "min": min,
        "slice": lambda *bounds: len(slice_range(*bounds)),
        "split": lambda length, parts, index: split_sizes(length, None, parts)[index],
    }
    if isinstance(dim, int):
        return dim
    return int(eval(dim, scope, dict(symbols)))


def _frozen(array: AnyArray) -> AnyArray:
    view = array.view()
    view.flags.writeable = False
    return view
