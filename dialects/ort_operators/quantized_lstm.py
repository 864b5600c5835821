"""DynamicQuantizeLSTM, which ONNX Runtime's quantizer makes of an LSTM; other devices scan.

Before each product the inputs are quantized by their own range: X once for all steps, the state h
anew in each step. Source: the contributed operators of ONNX Runtime, `com.microsoft`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...graph.building.builder import GraphBuilder
from ...graph.core.attribute import Attribute, Kind
from ...graph.core.ir import Graph
from ...graph.core.operator import Call, Operator, Specs
from ...graph.core.traits import RUNTIME, Part, never
from ...graph.decompositions.rules import DecompositionBuilder, decomposition
from ...graph.values.errors import ShapeError
from ...graph.values.tensor import TensorSpec

OP = "com.microsoft.DynamicQuantizeLSTM"

_GATES = 4
_REVERSED = {"forward": (0,), "reverse": (1,), "bidirectional": (0, 1)}
"""For each direction of a node, whether it starts at the end."""

_PRODUCT = ("weights", "scale", "zero")


def make_operator() -> Operator:
    """Make the operator; its shapes need no ONNX Runtime."""
    numbers = Attribute(Kind.FLOATS, None)
    return Operator(
        OP,
        "X W R B? sequence_lens? initial_h? initial_c? P? W_scale W_zero R_scale R_zero",
        "Y? Y_h? Y_c?",
        {
            "activation_alpha": numbers,
            "activation_beta": numbers,
            "activations": Attribute(Kind.STRINGS, None),
            "clip": Attribute(Kind.FLOAT, None),
            "direction": Attribute(Kind.STRING, "forward", choices=tuple(_REVERSED)),
            "hidden_size": Attribute(Kind.INT, None),
            "input_forget": Attribute(Kind.BOOL, False),
        },
        _infer,
        _count_operations,
        module=__name__,
        float16=never("its dtypes are those that the model has"),
        traits=RUNTIME,
        lacks=dict.fromkeys(
            (Part.KERNEL, Part.DEFINITION, Part.CODEGEN),
            "a Scan replaces it where there is no 'ort'",
        ),
    )


def _infer(call: Call) -> Sequence[TensorSpec]:
    x, r = call.spec(0), call.spec(2)
    if x.shape is None or len(x.shape) != 3 or not r.is_static or r.rank != 3:
        raise ShapeError(
            f"X is {x} and R is {r}", fix="pass X of 3 axes, and R of 3 numbers: (1 or 2, h, 4 h)"
        )
    directions, hidden, gates = r.static_shape
    if directions != len(_REVERSED[call.attributes["direction"]]) or gates != _GATES * hidden:
        raise ShapeError(f"R is {r}", fix="pass R of shape (directions, hidden, 4 * hidden)")
    steps, batch, _ = x.shape
    last = TensorSpec("float32", (directions, batch, hidden))
    specs = (TensorSpec("float32", (steps, directions, batch, hidden)), last, last)
    return specs[: call.n_outputs]


def _count_operations(call: Call, outputs: Specs) -> int:
    steps, batch, width = call.spec(0).static_shape
    directions, hidden, gates = call.spec(2).static_shape
    return 2 * steps * batch * directions * gates * (width + hidden)


@decomposition(OP)
def scan_steps(
    builder: DecompositionBuilder,
    x: str, w: str, r: str, b: str = "", lengths: str = "", h: str = "", c: str = "", p: str = "",
    *scales: str,
) -> tuple[str, ...] | None:  # fmt: skip
    # c = f c + i k, h = o tanh(c), as a Scan for each direction.
    attributes = builder.attributes
    unusual = ("activation_alpha", "activation_beta", "activations", "clip", "input_forget")
    if lengths or p or not (h and c) or any(attributes[name] for name in unusual):
        return None
    backwards = _REVERSED[attributes["direction"]]
    quantized = builder.several(3, "DynamicQuantizeLinear", x)
    directions = [
        _scan(builder, quantized, (w, r, b, h, c, *scales), number, back)
        for number, back in enumerate(backwards)
    ]
    return tuple(
        _join_directions(builder, [results[place] for results in directions], axis)
        if output
        else ""
        for output, place, axis in zip(builder.node.outputs, (2, 0, 1), (1, 0, 0), strict=False)
    )


def _join_directions(builder: DecompositionBuilder, parts: Sequence[str], axis: int) -> str:
    rows = [builder("Unsqueeze", part, (axis,)) for part in parts]
    return rows[0] if len(rows) == 1 else builder("Concat", *rows, axis=axis)


def _scan(
    builder: DecompositionBuilder,
    quantized: Sequence[str],
    inputs: Sequence[str],
    number: int,
    back: int,
) -> list[str]:
    """Write the Scan of one direction with `builder`; return last h, last c and all outputs.

    `number` is the direction's place in each of `inputs`, `quantized` the quantized x; a `back` of
    1 reads it from the end.
    """
    place = np.asarray(number, np.int64)
    w, r, b, h, c, *scales = (
        builder("Gather", name, place, axis=0) if name else "" for name in inputs
    )
    sums = _write_product(builder, quantized, (w, *scales[:2]))
    if b:
        half = builder.spec(b).static_shape[0] // 2
        parts = builder.several(2, "Split", b, (half, half), axis=0)
        sums = builder("Add", sums, builder("Add", *parts))
    captured = (r, *scales[2:])
    body = _make_body(builder, h, sums, captured)
    return builder.several(
        3,
        "Scan",
        *(h, c, sums, *captured),
        body=body,
        num_scan_inputs=1,
        scan_input_directions=(back,),
        scan_output_directions=(back,),
        captured=len(captured),
    )


def _write_product(
    write: Callable[..., str], quantized: Sequence[str], weights: Sequence[str]
) -> str:
    (q, scale, zero), (w, w_scale, w_zero) = quantized, weights
    integers = write("MatMulInteger", q, w, zero, w_zero)
    return write("Mul", write("Cast", integers, to="float32"), write("Mul", scale, w_scale))


def _make_body(builder: DecompositionBuilder, h: str, sums: str, captured: Sequence[str]) -> Graph:
    """Return the graph of a step from states like `h`, a row of `sums`, and `captured` weights.

    `builder` knows the specs.
    """
    b = GraphBuilder("step")
    states = [b.input(name, "float32", builder.spec(h).shape or ()) for name in "hc"]
    gates = b.input("gates", "float32", (builder.spec(sums).shape or ())[1:])
    weights = zip(_PRODUCT, map(builder.spec, captured), strict=True)
    given = [b.input(name, spec.dtype, spec.shape or ()) for name, spec in weights]
    quantized = b.op("DynamicQuantizeLinear", states[0], outputs=3)
    summed = b.op("Add", gates, _write_product(b.op, quantized, given))
    parts = b.op("Split", summed, axis=-1, outputs=_GATES, num_outputs=_GATES)
    i, o, f = (b.op("Sigmoid", part) for part in parts[:3])
    cell = b.op("Add", b.op("Mul", f, states[1]), b.op("Mul", i, b.op("Tanh", parts[3])))
    state = b.op("Mul", o, b.op("Tanh", cell))
    for name, tensor in (("h2", state), ("c2", cell), ("y", b.op("Identity", state))):
        b.output(name, tensor)
    return b.build()
