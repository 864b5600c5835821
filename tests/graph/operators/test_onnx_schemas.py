"""The operators against ONNX's own schemas: names of attributes, their defaults, dtypes taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from plait.graph.core.attribute import REQUIRED, Kind
from plait.graph.core.infer import infer_node
from plait.graph.core.ir import Node
from plait.graph.core.operator import Call, find_operator, list_operators
from plait.graph.values.tensor import TensorSpec

MODULES = {
    "activation", "attention", "convolution", "creation", "elementwise", "indexing",
    "integer_products", "linear_algebra", "logic", "movement", "normalization", "pooling",
    "quantization", "rearranging", "reduction", "reshaping", "resize", "rules", "sampling",
    "selecting", "signal", "slicing",
}  # fmt: skip
OWN = ("Cofactors", "ConvWeightsGradient", "MaxPoolGradient")
"""Operators of plait's that ONNX does not have, in modules whose others it has."""

NAMES = {"float": "float32", "double": "float64"}
NUMPY = {np.dtype(kind).name for kind in "?bBhHiIlLefdFD"}
REQUIRED_ATTRIBUTES = {
    "to": "float32",
    "axis": 0,
    "blocksize": 2,
    "direction": "LEFT",
    "equation": "ij->ji",
    "kernel_shape": (2,),
    "kv_num_heads": 1,
    "num_groups": 1,
    "q_num_heads": 1,
    "size": 1,
}
LEFT_OUT = {"nonpad_kv_seqlen", "scales", "training_mode"}
"""Optional inputs whose values matter, or which exclude another one."""


def _is_onnx(name: str) -> bool:
    module = find_operator(name).infer.__module__
    return "." not in name and name not in OWN and module.split(".")[-1] in MODULES


OPERATORS = [name for name in list_operators() if _is_onnx(name)]


def _default(attribute: onnx.defs.OpSchema.Attribute, kind: Kind) -> Any:
    value = onnx.helper.get_attribute_value(attribute.default_value)
    if kind is Kind.DTYPE:
        return onnx.helper.tensor_dtype_to_np_dtype(value).name if value else None
    return value.decode() if isinstance(value, bytes) else value


def test_attributes_and_defaults_are_those_of_the_newest_schema() -> None:
    for op in OPERATORS:
        schema, operator = onnx.defs.get_schema(op), find_operator(op)
        if op == "ConstantOfShape":  # its tensor attribute is a number and a dtype here
            assert set(operator.attributes) == {"value", "dtype"}
            continue

        assert set(operator.attributes) == set(schema.attributes), op
        for name, attribute in schema.attributes.items():
            default = operator.attributes[name].default
            if attribute.required:
                assert default is REQUIRED, (op, name)
            elif attribute.default_value.type:
                theirs = _default(attribute, operator.attributes[name].kind)
                assert default == pytest.approx(theirs), (op, name)
            else:
                assert default is None, (op, name)


def test_arity_is_that_of_the_newest_schema() -> None:
    for op in OPERATORS:
        schema, operator = onnx.defs.get_schema(op), find_operator(op)
        for counts, formals in (
            ((schema.min_input, schema.max_input), operator.inputs.split()),
            ((schema.min_output, schema.max_output), operator.outputs.split()),
        ):
            variadic = formals[-1][-1] in "+*"
            assert sum(formal[-1] not in "?*" for formal in formals) == counts[0], op
            assert (variadic and counts[1] > 100) or len(formals) == counts[1], op


def _numpy_dtypes(types: Any) -> list[str]:
    inner = [name[7:-1] for name in types if name.startswith("tensor(")]
    return [NAMES.get(name, name) for name in inner if NAMES.get(name, name) in NUMPY]


def test_all_dtypes_of_the_newest_schema_are_taken() -> None:
    for op in OPERATORS:
        _check_dtypes(op)


def _check_dtypes(op: str) -> None:
    schema, operator = onnx.defs.get_schema(op), find_operator(op)
    allowed = {
        c.type_param_str: _numpy_dtypes(c.allowed_type_strs) for c in schema.type_constraints
    }
    attributes = operator.complete(
        {k: v for k, v in REQUIRED_ATTRIBUTES.items() if k in operator.attributes}, op
    )
    node = Node(
        "node", op, tuple(f.rstrip("?+*") for f in operator.inputs.split()), ("y",), attributes
    )

    for parameter, dtypes in allowed.items():
        for dtype in dtypes:
            chosen = {name: listed[0] for name, listed in allowed.items()} | {parameter: dtype}
            if op == "BitCast":
                attributes = {"to": chosen["T1"]}
            specs = [
                None
                if formal.name in LEFT_OUT
                else TensorSpec(
                    chosen.get(formal.type_str) or _numpy_dtypes([formal.type_str])[0], None
                )
                for formal in schema.inputs
            ]
            (y,) = infer_node(node, Call(tuple(specs), (None,) * len(specs), attributes))
            output = schema.outputs[0].type_str
            if output in {formal.type_str for formal in schema.inputs}:
                assert y.dtype == chosen[output], (op, chosen)
