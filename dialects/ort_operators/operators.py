"""Operators made of ONNX Runtime's own schemas: nodes that only `ort` devices run.

These are the operators of its domains, and those of ONNX that plait neither has nor decomposes:
operators on text and nonstandard ones. Without ONNX Runtime, none is registered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from ...devices.errors import DeviceUnavailableError
from ...devices.ort.runtime import list_schemas
from ...graph.core.attribute import REQUIRED, RESERVED, Attribute, Kind
from ...graph.core.operator import Operator, free, is_operator, register_operator
from ...graph.core.traits import RUNTIME, Part, never
from ...graph.core.whole import WHOLE
from ...graph.decompositions.rules import DecompositionBuilder, decomposition, decompositions
from ...graph.formats.onnx.expansion import can_be_expanded
from ...graph.formats.onnx.nodes import read_default
from ...graph.formats.unknown_operators import RUNTIME_DOMAINS
from . import quantized_lstm
from .inference import infer


@decomposition("com.microsoft.MatMulNBits")
def matmul_n_bits(
    builder: DecompositionBuilder,
    a: str, weights: str, scales: str, zeros: str = "", order: str = "", bias: str = "",
) -> str | None:  # fmt: skip
    attributes = builder.attributes
    k, n, bits, size = (attributes[name] for name in ("K", "N", "bits", "block_size"))
    count = -(-k // size)
    if bits not in (4, 8) or order or builder.shape(weights) is None:
        return None
    if zeros and builder.spec(zeros).dtype != np.uint8:
        return None
    # Features in columns: MatMul takes DequantizeLinear's result without transposing per item.
    columns = _make_columns(builder, weights, bits, n, count * size, k)
    if zeros:
        width = count + count % 2 if bits == 4 else count
        offsets = _make_columns(builder, zeros, bits, n, width, count)
    else:
        offsets = builder.constant(np.full((count, n), 2 ** (bits - 1), np.uint8))
    steps = builder("Transpose", builder("Reshape", scales, (n, count)), perm=(1, 0))
    floats = builder("DequantizeLinear", columns, steps, offsets, axis=0, block_size=size)
    product = builder("MatMul", a, floats)
    return builder("Add", product, bias) if bias else product


def _make_columns(
    builder: DecompositionBuilder, packed: str, bits: int, n: int, width: int, used: int
) -> str:
    """Unpack `packed`, `n` rows of `width` integers of `bits`, and return the first `used` as rows.

    `builder` writes the nodes.
    """
    values = packed
    if bits == 4:  # the lower half of a byte is the first of two
        flat = builder("Reshape", packed, (-1, 1))
        low = builder("BitwiseAnd", flat, np.asarray(15, np.uint8))
        high = builder("BitShift", flat, np.asarray(4, np.uint8), direction="RIGHT")
        values = builder("Concat", low, high, axis=1)
    columns = builder("Transpose", builder("Reshape", values, (n, width)), perm=(1, 0))
    return columns if width == used else builder("Slice", columns, (0,), (used,), (0,))


_KINDS = {
    "INT": Kind.INT,
    "FLOAT": Kind.FLOAT,
    "STRING": Kind.STRING,
    "INTS": Kind.INTS,
    "FLOATS": Kind.FLOATS,
    "STRINGS": Kind.STRINGS,
    "TENSOR": Kind.TENSOR,
}

_FOREIGN_CODE = ("EPContext", "Snpe")
"""Operators with code compiled by a provider, or the name of its file: refused for security."""

_RUN_BY_ORT = dict.fromkeys(Part, "ONNX Runtime computes it, on 'ort' devices alone")
_WRITTEN_OUT = dict.fromkeys(
    (Part.KERNEL, Part.DEFINITION, Part.CODEGEN), "it is written out where there is no 'ort'"
)


def _register() -> None:
    for schema in _list_newest_schemas():
        if schema.name in _FOREIGN_CODE:
            continue
        attributes = dict(_list_attributes(schema))
        if any(one.required and key not in attributes for key, one in schema.attributes.items()):
            continue  # it takes graphs
        name = f"{schema.domain}.{schema.name}" if schema.domain else str(schema.name)
        if name == quantized_lstm.OP:
            continue
        if not schema.domain and (is_operator(name) or _is_left_out(schema)):
            continue
        register_operator(
            Operator(
                name,
                _format_formals(schema.inputs),
                _format_formals(schema.outputs),
                attributes,
                partial(infer, name),
                free,
                module=__name__,
                float16=never("its dtypes are those that the model has"),
                traits=RUNTIME,
                lacks=_WRITTEN_OUT if name in decompositions() else _RUN_BY_ORT,
                version=schema.since_version,
            )
        )


def _list_newest_schemas() -> Iterator[Any]:
    """Yield the newest schema of each operator; without deprecated ones of ONNX itself."""
    newest: dict[tuple[str, str], Any] = {}
    for schema in sorted(list_schemas(), key=lambda one: int(one.since_version)):
        # Deprecated operators of its own domains, such as tree ensembles, still have kernels.
        if not schema.domain or (schema.domain in RUNTIME_DOMAINS and not schema.deprecated):
            newest[schema.domain, schema.name] = schema
    yield from (schema for schema in newest.values() if not schema.deprecated)


def _is_left_out(schema: Any) -> bool:
    """Return whether `schema` is of an operator without tensors, or expanded to its body."""
    formals = (*schema.inputs, *schema.outputs)
    tensors = all(type_.startswith("tensor(") for formal in formals for type_ in formal.types)
    return not tensors or can_be_expanded(schema.domain, schema.name)


def _format_formals(formals: Sequence[Any]) -> str:
    marks = {"Single": "", "Optional": "?", "Variadic": "*"}
    return " ".join(f"{formal.name}{marks[formal.option.name]}" for formal in formals)


def _list_attributes(schema: Any) -> Iterator[tuple[str, Attribute]]:
    """Yield the attributes of `schema` that nodes can hold: all except graphs."""
    for name, attribute in schema.attributes.items():
        kind = _KINDS.get(attribute.type.name)
        if kind is not None and name not in RESERVED:
            default = REQUIRED if attribute.required else read_default(attribute._default_value)
            yield name, Attribute(kind, default)


def _register_whole() -> None:
    register_operator(
        Operator(
            WHOLE,
            "inputs*",
            "outputs*",
            {"body": Attribute(Kind.GRAPH)},
            partial(infer, WHOLE),
            free,
            module=__name__,
            float16=never("its dtypes are those that the model has"),
            traits=RUNTIME,
            lacks=_WRITTEN_OUT,
        )
    )


register_operator(quantized_lstm.make_operator())
with suppress(DeviceUnavailableError):
    _register()
    _register_whole()
