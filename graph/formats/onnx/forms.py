"""Nodes in ONNX's form: attributes by type, and the reasons why some nodes cannot be written.

plait's operators are ONNX's newest. An older opset has most of them in the same form, with fewer
dtypes or attributes, as the operator schemas of the `onnx` package show. If only the meaning
changed, the schema does not show it, and a table does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ...core.attribute import Kind, array_in
from ...core.ir import ASSIGN, VARIABLE, Node
from ...core.operator import find_operator
from ...operators.control import CONTROL_FLOW, UNWRITTEN
from ...values.dtypes import TEXT, name_of
from ...values.tensor import TensorSpec
from .nodes import ATTRIBUTES, is_extension_operator, unwrap_attributes
from .tensors import ELEMENT_TYPES, STRING

ELEMENT_TYPE_OF: Mapping[str, int] = {
    **{name: number for number, name in ELEMENT_TYPES.items()},
    name_of(TEXT): STRING,
}
"""The element type of ONNX for each dtype."""

_TYPE_NAMES = {"float32": "float", "float64": "double", TEXT.name: "string"}

_TEXT: Callable[[str], bytes] = str.encode
_FIELDS: Mapping[Kind, tuple[str, str, Callable[[Any], Any]]] = {
    Kind.INT: ("INT", "i", int),
    Kind.BOOL: ("INT", "i", int),
    Kind.DTYPE: ("INT", "i", lambda dtype: ELEMENT_TYPE_OF[dtype]),
    Kind.FLOAT: ("FLOAT", "f", float),
    Kind.STRING: ("STRING", "s", _TEXT),
    Kind.BOOLS: ("INTS", "ints", lambda flags: list(map(int, flags))),
    Kind.INTS: ("INTS", "ints", list),
    Kind.FLOATS: ("FLOATS", "floats", list),
    Kind.STRINGS: ("STRINGS", "strings", lambda texts: [_TEXT(text) for text in texts]),
    Kind.TENSOR: ("TENSOR", "t", lambda value: to_tensor_proto("", array_in(value))),
}
"""The type and field of an AttributeProto for each kind of attribute."""


class _Change(NamedTuple):
    """A change of meaning: the opset, the affected nodes, and the part that changed."""

    opset: int
    concerns: Callable[[Node, Sequence[TensorSpec | None]], bool]
    what: str


def _rounds_up(node: Node, inputs: Sequence[TensorSpec | None]) -> bool:
    return bool(node.attributes["ceil_mode"])


def _is_float_modulo(node: Node, inputs: Sequence[TensorSpec | None]) -> bool:
    return not node.attributes["fmod"] and inputs[0] is not None and inputs[0].dtype.kind == "f"


_CHANGES: Mapping[str, _Change] = {
    "AveragePool": _Change(22, _rounds_up, "windows that start in the padding"),
    "BitShift": _Change(28, lambda node, inputs: True, "shifts by more bits than a number has"),
    "MaxPool": _Change(22, _rounds_up, "windows that start in the padding"),
    "Mod": _Change(28, _is_float_modulo, "remainders of floats that round down"),
}
"""Operators that meant something else before an opset; from opset 21 on, by their change logs."""


def split_name(op: str) -> tuple[str, str]:
    """Return the domain and the name of `op`: "acme.Fetch" is Fetch, of the domain "acme"."""
    domain, _, name = op.rpartition(".")
    return domain, name


def find_own_refusal(node: Node) -> str | None:
    """Return why the operator of `node`, of its own domain, cannot be written; None if it can.

    Only its name defines it: the reader of the model must know it.
    """
    # A function's default name is the place of its code, which a reader could not import.
    function = node.operator.function
    if function is not None and node.op == f"{function.__module__}.{function.__qualname__}":
        return "Python functions travel in ONNX models by name: @operator(name='domain.Name')"
    for name, attribute in node.operator.attributes.items():
        if attribute.kind not in _FIELDS:
            return f"its attribute {name!r} is {attribute.kind.value}"
    return None


def find_refusal(
    node: Node,
    inputs: Sequence[TensorSpec | None],
    outputs: Sequence[TensorSpec | None],
    opset: int,
) -> str | None:
    """Return why `opset` lacks `node` with specs `inputs` and `outputs`, or None if it has it."""
    if node.op in (VARIABLE, ASSIGN):
        return f"ONNX has no {node.op}: save plait.freeze(graph, values)"
    schema = _find_schema(node.op, opset)
    if schema is None:
        newest = _find_schema(node.op, None)
        since = f"; it came with opset {newest.since_version}" if newest is not None else ""
        return f"ONNX has no operator {node.op!r} in opset {opset}{since}"
    return next(_list_mismatches(node, inputs, outputs, schema, opset), None)


def add_attributes(node: Node, protos: Any) -> None:
    """Add the attributes of `node` except graphs to `protos`, those of a NodeProto.

    Leaving out defaults also spares some, such as 0.01, the rounding to 32 bits.
    """
    if node.op == "ConstantOfShape":
        protos.append(_make_filling(node))
        return
    if is_extension_operator(node.op):
        protos.extend(unwrap_attributes(node.attributes[ATTRIBUTES]))
        return
    known = find_operator(node.op).attributes
    attributes = node.attributes
    if node.op == "Split" and not any(node.inputs[1:]):  # ONNX wants one of both
        attributes = {**attributes, "num_outputs": len(node.outputs)}
    for name, value in attributes.items():
        kind = known[name].kind
        if value is None or kind is Kind.GRAPH or name in _list_unwritten(node):
            continue
        # Written out, defaults would be refused by readers of opsets that lack the attribute.
        if value == known[name].default:
            continue
        type_, field, convert = _FIELDS[kind]
        protos.add(name=name, type=type_, **{field: convert(value)})


def _list_unwritten(node: Node) -> tuple[str, ...]:
    return UNWRITTEN if node.op in CONTROL_FLOW else ()


def to_tensor_proto(name: str, array: Any) -> Any:
    from onnx import TensorProto

    if array.dtype == TEXT:
        encoded = [_TEXT(text) for text in array.flat]
        return TensorProto(name=name, dims=array.shape, data_type=STRING, string_data=encoded)
    # ONNX has the low byte first on every machine.
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return TensorProto(
        name=name,
        dims=array.shape,
        data_type=ELEMENT_TYPE_OF[array.dtype.name],
        raw_data=little.tobytes(),
    )


def _make_filling(node: Node) -> Any:
    """Return the number and dtype of the ConstantOfShape `node` as a tensor."""
    from onnx import AttributeProto

    value = np.array([node.attributes["value"]], node.attributes["dtype"])
    return AttributeProto(name="value", type="TENSOR", t=to_tensor_proto("", value))


def list_output_types(op: str, index: int) -> Collection[str]:
    """Return ONNX's types of output `index` of `op`; none if it is unknown."""
    schema = _find_schema(op, None)
    if schema is None:
        return ()
    types: Collection[str] = schema.outputs[min(index, len(schema.outputs) - 1)].types
    return types


def has_tensors_alone(op: str) -> bool:
    """Return whether all inputs and outputs of `op` may be tensors in ONNX."""
    schema = _find_schema(op, None)
    formals = () if schema is None else (*schema.inputs, *schema.outputs)
    return all(any(type_.startswith("tensor(") for type_ in one.types) for one in formals)


@cache
def _find_schema(op: str, opset: int | None) -> Any:
    from onnx import defs

    if not defs.has(op):
        return None
    try:
        return defs.get_schema(op) if opset is None else defs.get_schema(op, opset)
    except defs.SchemaError:
        return None


def _list_mismatches(
    node: Node,
    inputs: Sequence[TensorSpec | None],
    outputs: Sequence[TensorSpec | None],
    schema: Any,
    opset: int,
) -> Iterator[str]:
    form = f"{node.op} of opset {opset}"
    known = find_operator(node.op).attributes
    for name, value in node.attributes.items() if node.op != "ConstantOfShape" else ():
        if name in _list_unwritten(node):
            continue
        if known[name].kind not in (*_FIELDS, Kind.GRAPH):
            yield f"its attribute {name!r} is {known[name].kind.value}"
        if value != known[name].default and name not in schema.attributes:
            yield f"{form} has no attribute {name!r}"
    if len(inputs) > schema.max_input or len(outputs) > schema.max_output:
        yield f"{form} has fewer inputs or outputs"
    for formals, specs in ((schema.inputs, inputs), (schema.outputs, outputs)):
        for index, spec in enumerate(specs):
            formal = formals[min(index, len(formals) - 1)]
            # The last formal repeats, if it is variadic.
            if spec is not None and _name_type(spec.dtype) not in formal.types:
                yield f"{form} does not take {spec.dtype.name} as {formal.name}"
    # The schema is the same in both opsets: only the meaning of a case moved.
    change = _CHANGES.get(node.op)
    if change is not None and opset < change.opset and change.concerns(node, inputs):
        yield f"{form} leaves open what becomes of {change.what}"


@cache  # numpy makes the name of a dtype anew at each access
def _name_type(dtype: np.dtype[Any]) -> str:
    name = dtype.name.replace("_", "")  # float8_e5m2 is float8e5m2 there
    return f"tensor({_TYPE_NAMES.get(name, name)})"
