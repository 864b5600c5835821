"""Shapes and dtypes as ONNX Runtime infers them, in a session of one node."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...devices.ort.runtime import find_newest_opset, load, make_options, summarize
from ...graph.core.ir import Graph, Node
from ...graph.core.nested import list_graphs
from ...graph.core.operator import Call
from ...graph.formats.onnx.forms import list_output_types
from ...graph.formats.onnx.writer import to_onnx
from ...graph.values.dims import UNKNOWN
from ...graph.values.dtypes import TEXT
from ...graph.values.errors import OperatorError
from ...graph.values.tensor import Array, Dim, Shape, TensorSpec, spec_of

SMALL = 64
"""Elements of constants that may decide shapes, and become part of the model."""

FEW, MANY = 3, 101
"""Lengths for which kernels run to find those of their results."""

ANY_LENGTH = "any_length"

KEPT_RESULTS = 4096

_TYPES = {"float": "float32", "double": "float64", "string": "str"}
_FIX = "correct its inputs and attributes, or export the model without it"

REGRESSOR = "ai.onnx.ml.TreeEnsembleRegressor"
_TREES = REGRESSOR, "ai.onnx.ml.TreeEnsembleClassifier"

_results: dict[Hashable, tuple[tuple[TensorSpec, ...], list[Graph]]] = {}


def infer(op: str, call: Call) -> tuple[TensorSpec, ...]:
    """Return the specs of outputs of `op` in `call`; OperatorError if ONNX Runtime refuses it."""
    if (known := _infer_trees(op, call)) is not None:
        return known
    values = [_keep_decisive(value) for value in call.values]
    # Graphs are not hashable: they are kept with the answer, so that their ids stay unique.
    graphs = [value for value in call.attributes.values() if isinstance(value, Graph)]
    attributes = {n: id(v) if isinstance(v, Graph) else v for n, v in call.attributes.items()}
    key = (
        *(op, tuple(attributes.items()), call.inputs, call.n_outputs),
        *(value is not None and (value.dtype, value.shape, value.tobytes()) for value in values),
    )
    if key not in _results:
        if len(_results) >= KEPT_RESULTS:
            _results.clear()
        _results[key] = _ask(op, call, values), graphs
    return _results[key][0]


def _infer_trees(op: str, call: Call) -> tuple[TensorSpec, ...] | None:
    """Return the outputs of an ensemble of trees for rows, or None: its session takes seconds."""
    if op not in _TREES:
        return None
    rows, attributes = call.inputs[0], call.attributes
    words: Sequence[str] = attributes.get("classlabels_strings") or ()
    if len(words) == 1:  # ONNX Runtime 1.32 looks for a second one, and aborts
        raise OperatorError(f"{op} has one label, {words[0]!r}", fix="give it two, or numbers")
    if rows is None or rows.rank != 2 or rows.dtype.kind != "f":
        return None
    count = (rows.shape or (UNKNOWN,))[0]
    if op == REGRESSOR:
        width = attributes["n_targets"] or 0
        return (TensorSpec("float32", (count, width)),) if width > 0 else None
    if not (named := words or attributes["classlabels_int64s"]):
        return None
    labels = TensorSpec("str" if words else "int64", (count,))
    scores = TensorSpec("float32", (count, len(named)))
    return (labels, scores)[: call.n_outputs]


def _keep_decisive(value: Array | None) -> Array | None:
    is_small = value is not None and value.size <= SMALL and value.dtype != TEXT
    return value if is_small else None


def _ask(op: str, call: Call, values: list[Array | None]) -> tuple[TensorSpec, ...]:
    inputs = tuple("" if spec is None else f"x{i}" for i, spec in enumerate(call.inputs))
    outputs = tuple(f"y{i}" for i in range(call.n_outputs))
    fed = {
        name: spec
        for name, spec, value in zip(inputs, call.inputs, values, strict=True)
        if spec is not None and value is None
    }
    constants = {name: v for name, v in zip(inputs, values, strict=True) if v is not None}
    node = Node("probe", op, inputs, outputs, call.attributes)
    try:
        session = load(_make_model(node, fed, constants), make_options(optimize=False))
        found = session.get_outputs()
        shapes: Sequence[Shape | None] = [_convert_shape(output.shape, fed) for output in found]
        # Running the kernel finds shapes that the schema's rules leave open.
        if any(shape is None or UNKNOWN in shape for shape in shapes):
            texts = _collect_texts(call.attributes)
            if all(spec.is_static for spec in fed.values()):
                shapes = _run_kernel(session, fed, texts)
            elif None not in (spec.shape for spec in fed.values()):
                with suppress(Exception):  # it may want other lengths
                    shapes = _run_at_lengths(session, fed, texts)
    except Exception as error:
        if any(spec is not None and 0 in (spec.shape or ()) for spec in call.inputs):
            return _ask_for_any_length(op, call, values)
        raise OperatorError(f"ONNX Runtime refuses {op}: {summarize(error)}", fix=_FIX) from error
    return tuple(
        TensorSpec(_to_dtype(op, output.type), shape)
        for output, shape in zip(found, shapes, strict=True)
    )


def _ask_for_any_length(op: str, call: Call, values: list[Array | None]) -> tuple[TensorSpec, ...]:
    """Return the specs for empty inputs, which kernels may refuse, by those for any length."""

    def put(new: Dim, old: Dim, spec: TensorSpec) -> TensorSpec:
        shape = spec.shape and [new if dim == old else dim for dim in spec.shape]
        return TensorSpec(spec.dtype, shape)

    inputs = tuple(spec and put(ANY_LENGTH, 0, spec) for spec in call.inputs)
    return tuple(put(0, ANY_LENGTH, one) for one in _ask(op, replace(call, inputs=inputs), values))


def _make_model(node: Node, fed: dict[str, TensorSpec], constants: dict[str, Array]) -> Any:
    specs = {
        **fed,
        **{name: spec_of(value) for name, value in constants.items()},
        **{name: _guess_spec(node.op, index) for index, name in enumerate(node.outputs)},
    }
    for body in list_graphs(node):  # for its dtypes, at least
        named = zip(node.outputs, body.outputs, strict=True)
        specs |= {name: TensorSpec(body.tensors[inner].dtype, None) for name, inner in named}
    graph = Graph("probe", tuple(fed), node.outputs, (node,), specs, constants)
    model = to_onnx(graph, opset=find_newest_opset())
    for output in model.graph.output:
        output.ClearField("type")  # ONNX Runtime infers it
    return model


def _guess_spec(op: str, index: int) -> TensorSpec:
    types = list_output_types(op, index) or ("tensor(float)",)
    type_ = "tensor(float)" if "tensor(float)" in types else min(types)
    return TensorSpec(_to_dtype(op, type_), None)


def _convert_shape(shape: list[Dim | None] | None, fed: dict[str, TensorSpec]) -> Shape | None:
    """Return `shape` with symbols of the inputs `fed`; others, and an empty shape, are unknown."""
    if not shape:
        return None
    symbols = {dim for spec in fed.values() for dim in spec.shape or () if isinstance(dim, str)}
    return tuple(
        dim if dim in symbols or (isinstance(dim, int) and dim >= 0) else UNKNOWN for dim in shape
    )


def _run_at_lengths(
    session: Any, fed: Mapping[str, TensorSpec], texts: Sequence[str]
) -> list[Shape]:
    """Return the output shapes of the node in `session` with symbols of the inputs `fed`.

    A length is that of a symbol if they are equal in two runs, with few and with many elements.
    """
    symbols = {dim for spec in fed.values() for dim in spec.shape or () if isinstance(dim, str)}
    runs: list[tuple[dict[Dim, int], list[Shape]]] = []
    for least in FEW, MANY:
        lengths: dict[Dim, int] = {symbol: least + n for n, symbol in enumerate(sorted(symbols))}
        specs = {
            name: TensorSpec(spec.dtype, [lengths.get(dim, dim) for dim in spec.shape or ()])
            for name, spec in fed.items()
        }
        runs.append((lengths, _run_kernel(session, specs, texts)))

    def find(*dims: Dim) -> Dim:
        named = (
            one
            for one in symbols
            if all(run[0][one] == d for run, d in zip(runs, dims, strict=True))
        )
        return dims[0] if len({*dims}) == 1 else next(named, UNKNOWN)

    shapes = zip(*(found for _, found in runs), strict=True)
    return [tuple(find(*dims) for dims in zip(*each, strict=True)) for each in shapes]


def _run_kernel(session: Any, fed: Mapping[str, TensorSpec], texts: Sequence[str]) -> list[Shape]:
    """Return the output shapes of the node in `session`, run on inputs with the specs `fed`.

    A length that differs between equal elements, different ones and `texts`, which the node has
    as attributes, such as stop words, depends on values and is unknown. So does a length of 0 of
    inputs that are not empty: a tokenizer may find no word in any of them. If others depend on
    values all the same, a run with other lengths fails.
    """

    def run(fill: Callable[[TensorSpec], Array]) -> Any:
        return session.run(None, {name: fill(spec) for name, spec in fed.items()})

    runs = [run(_fill_equal)]
    try:
        runs.append(run(_fill_distinct))
    except Exception:
        runs.append(run(_fill_alternating))
    if texts:
        runs.append(run(partial(_fill_texts, texts)))
    is_empty = any(spec.size == 0 for spec in fed.values())

    def find(dims: tuple[int, ...]) -> Dim:
        return dims[0] if len({*dims}) == 1 and (dims[0] or is_empty) else UNKNOWN

    return [
        tuple(map(find, zip(*shapes, strict=True)))
        for shapes in zip(*(map(np.shape, found) for found in runs), strict=True)
    ]


def _collect_texts(attributes: Mapping[str, Any]) -> list[str]:
    lists = (value for value in attributes.values() if isinstance(value, tuple))
    return [text for one in lists for text in one if isinstance(text, str)]


def _fill_texts(texts: Sequence[str], spec: TensorSpec) -> Array:
    if spec.dtype != TEXT:
        return _fill_equal(spec)
    return np.resize(np.array(texts, TEXT), spec.static_shape)


def _fill_equal(spec: TensorSpec) -> Array:
    return np.full(spec.static_shape, "" if spec.dtype == TEXT else 0, spec.dtype)


def _fill_distinct(spec: TensorSpec) -> Array:
    numbers = np.arange(spec.size).reshape(spec.static_shape)
    if spec.dtype == TEXT:
        return np.array([f"{n} word {n}" for n in numbers.flat], TEXT).reshape(spec.static_shape)
    return numbers.astype(spec.dtype)


def _fill_alternating(spec: TensorSpec) -> Array:
    """Return two different elements in turn, which may be indices."""
    two = _fill_distinct(TensorSpec(spec.dtype, (2,)))
    return np.resize(two, spec.static_shape)


def _to_dtype(op: str, type_: str) -> str:
    """Return the dtype of ONNX Runtime's `type_`, such as ``tensor(float)``; `op` is for errors."""
    if not type_.startswith("tensor("):
        raise OperatorError(
            f"{op} yields {type_}, which is not a tensor", fix="export the model with tensors alone"
        )
    element = type_.removeprefix("tensor(").removesuffix(")")
    return _TYPES.get(element, element)
