"""DynamicQuantizeLSTM of ONNX Runtime, written out: what its quantizer makes of an LSTM.

Before each product the inputs are quantized by their own range: X once for all steps, the state h
anew in each. Source: the contributed operators of ONNX Runtime, `com.microsoft`.
"""

from __future__ import annotations

from typing import Any

from .nested import all_nodes
from .nodes import DEFAULT_DOMAINS
from .tensors import text

DOMAIN, OP = "com.microsoft", "DynamicQuantizeLSTM"

_INPUTS = (
    *("X", "W", "R", "B", "lengths", "H", "C", "P"),
    *("W_scale", "W_zero", "R_scale", "R_zero"),
)
_GIVEN = (0, 1, 2, 5, 6, 8, 9, 10, 11)
"""Which inputs have to be there; B may be. The lengths and P of others are not written out."""

_OF_DIRECTIONS = (
    *(("w", "W"), ("sw", "W_scale"), ("zw", "W_zero")),
    *(("r", "R"), ("sr", "R_scale"), ("zr", "R_zero")),
)
"""Names within a direction, for rows of these inputs."""

_REVERSED = {"forward": (0,), "reverse": (1,), "bidirectional": (0, 1)}
"""For each direction of a node, whether it starts at the end."""

_SPLIT_SAYS_HOW_MANY = 18
"""Since this opset Split has to be told into how many parts it cuts."""


def with_lstm_bodies(model: Any) -> tuple[Any, list[tuple[str, str]]]:
    """Return the model with functions for its quantized LSTMs, and the functions' keys.

    Nodes of unusual forms keep their operator, and so does the given model.
    """
    from onnx import ModelProto

    if not any(_is_usual(node) for node in all_nodes(model.graph)):
        return model, []
    named = ModelProto()
    named.CopyFrom(model)
    opset = max(
        (entry.version for entry in model.opset_import if entry.domain in DEFAULT_DOMAINS),
        default=1,
    )
    forms: dict[str, Any] = {}
    for node in filter(_is_usual, all_nodes(named.graph)):
        direction, biased = _direction(node), bool(node.input[3])
        node.op_type = f"{OP}_{direction}{'_biased' * biased}"
        del node.attribute[:]
        if node.op_type not in forms:
            forms[node.op_type] = _function(node.op_type, direction, biased, opset)
    named.functions.extend(forms.values())
    return named, [(DOMAIN, name) for name in forms]


def _direction(node: Any) -> str:
    named = [each.s for each in node.attribute if each.name == "direction"]
    return named[0].decode(errors="replace") if named else "forward"


def _is_usual(node: Any) -> bool:
    if (text(node.domain), text(node.op_type)) != (DOMAIN, OP):
        return False
    given = {index for index, name in enumerate(node.input) if name}
    if len(node.input) != len(_INPUTS) or given - {3} != set(_GIVEN):
        return False
    attributes = {each.name: each for each in node.attribute}
    if attributes.keys() - {"direction", "hidden_size", "input_forget"}:
        return False
    forgets = attributes.get("input_forget")
    return _direction(node) in _REVERSED and not (forgets is not None and forgets.i)


def _function(name: str, direction: str, biased: bool, opset: int) -> Any:
    """Return what a node does, as a FunctionProto."""
    from onnx import parser

    backwards = _REVERSED[direction]
    count = len(backwards)
    hs, cs, ys, hts, cts = (_numbered(prefix, count) for prefix in ("h", "c", "ys", "hT", "cT"))
    lines = [
        "qx, sx, zx = DynamicQuantizeLinear (X)",
        f"{hs} = Split <{_parts(count, opset)}axis = 0> (H)",
        f"{cs} = Split <{_parts(count, opset)}axis = 0> (C)",
        *(line for d, back in enumerate(backwards) for line in _lines(d, back, biased, opset)),
        f"Y = Concat <axis = 1> ({ys})",
        f"Y_h = Concat <axis = 0> ({hts})",
        f"Y_c = Concat <axis = 0> ({cts})",
    ]
    return parser.parse_function(
        f'<domain: "{DOMAIN}", opset_import: ["": {opset}]>\n'
        f"{name} ({', '.join(_INPUTS)}) => (Y, Y_h, Y_c) {{\n" + "\n".join(lines) + "\n}"
    )


def _numbered(prefix: str, count: int) -> str:
    return ", ".join(f"{prefix}{index}" for index in range(count))


def _parts(count: int, opset: int) -> str:
    return f"num_outputs = {count}, " if opset >= _SPLIT_SAYS_HOW_MANY else ""


def _lines(d: int, back: int, biased: bool, opset: int) -> list[str]:
    """Return the nodes of one direction, whose names end with its number."""
    return [
        f"d{d} = Constant <value = int64 {{{d}}}> ()",
        *(f"{short}{d} = Gather <axis = 0> ({name}, d{d})" for short, name in _OF_DIRECTIONS),
        *_product(f"x{d}", "qx", "sx", "zx", f"w{d}", f"sw{d}", f"zw{d}"),
        *(_bias(d, opset) if biased else [f"g{d} = Identity (x{d})"]),
        f"hT{d}, cT{d}, ys{d} = Scan <num_scan_inputs = 1, scan_input_directions = [{back}], "
        f"scan_output_directions = [{back}], body = step{d} (h, c, g) => (h2, c2, y) {{",
        *_step(d, opset),
        f"}}> (h{d}, c{d}, g{d})",
    ]


def _bias(d: int, opset: int) -> list[str]:
    return [
        f"b{d} = Gather <axis = 0> (B, d{d})",
        f"bw{d}, br{d} = Split <{_parts(2, opset)}axis = 0> (b{d})",
        f"bs{d} = Add (bw{d}, br{d})",
        f"g{d} = Add (x{d}, bs{d})",
    ]


def _step(d: int, opset: int) -> list[str]:
    """Return the body of a Scan: C = f c + i k, H = o tanh(C)."""
    return [
        "qh, sh, zh = DynamicQuantizeLinear (h)",
        *_product("hr", "qh", "sh", "zh", f"r{d}", f"sr{d}", f"zr{d}"),
        "a = Add (g, hr)",
        f"ai, ao, af, ak = Split <{_parts(4, opset)}axis = -1> (a)",
        "i = Sigmoid (ai)",
        "o = Sigmoid (ao)",
        "f = Sigmoid (af)",
        "k = Tanh (ak)",
        "fc = Mul (f, c)",
        "ik = Mul (i, k)",
        "c2 = Add (fc, ik)",
        "t = Tanh (c2)",
        "h2 = Mul (o, t)",
        "y = Identity (h2)",
    ]


def _product(y: str, q: str, s: str, z: str, w: str, sw: str, zw: str) -> list[str]:
    """Return nodes: y = the product of what q and w stand for, with scales s and zeros z."""
    return [
        f"{y}_n = MatMulInteger ({q}, {w}, {z}, {zw})",
        f"{y}_f = Cast <to = 1> ({y}_n)",
        f"{y}_s = Mul ({s}, {sw})",
        f"{y} = Mul ({y}_f, {y}_s)",
    ]
