"""Operators for which ONNX Runtime treats infinities and NaN differently from their definitions.

Found on 1.32.0 by random nodes: tests/properties/test_special_values.py runs them, and
docs/limits.md has the table. With the option ``nan="formal"`` the device refuses these nodes.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...graph.core.ir import Node
from ...graph.core.nested import list_graphs, walk_nodes
from ...graph.core.operator import Call

_SKIPPED = "a NaN is left out; the definition returns NaN, or its place"
_REDUCED = "with max or min, a NaN may be left out"
_CELLS = "a NaN in a cell or its activation may become a number"
_ROWS = "a row with an infinity or NaN may keep numbers, or become NaN as a whole"

SPECIAL_VALUES: Mapping[str, str] = {
    "AffineGrid": "an infinity in theta may give infinity where the definition gives NaN",
    "ArgMax": _SKIPPED,
    "ArgMin": _SKIPPED,
    "Attention": "a score of NaN or infinity may spread to other queries",
    "Cast": "NaN and infinities become other integers",
    "Clip": "a bound that is NaN is passed over, or the other bound",
    "DynamicQuantizeLinear": "NaN and infinities give another scale",
    "GRU": _CELLS,
    "GlobalMaxPool": _SKIPPED,
    "LSTM": _CELLS,
    "LayerNormalization": _ROWS,
    "LogSoftmax": _ROWS,
    "MaxPool": _SKIPPED,
    "MeanVarianceNormalization": _ROWS,
    "RNN": _CELLS,
    "ReduceLogSumExp": _SKIPPED,
    "ReduceMax": _SKIPPED,
    "ReduceMin": _SKIPPED,
    "ScatterElements": _REDUCED,
    "ScatterND": _REDUCED,
    "Sign": "a NaN in float16 becomes a number",
    "ThresholdedRelu": "a NaN becomes 0",
    "TopK": "a NaN is not the largest",
}


def find_special_difference(node: Node, call: Call) -> str | None:
    """Return how `node` or a node in it treats special values differently, or None.

    `call` has the specs of its inputs.
    """
    reads_floats = any(spec is not None and spec.dtype.kind not in "biuO" for spec in call.inputs)
    if node.op in SPECIAL_VALUES and reads_floats:
        return f"nan='formal': {SPECIAL_VALUES[node.op]}"
    inner = {one.op for graph in list_graphs(node) for _, _, one in walk_nodes(graph)}
    if found := sorted(inner & SPECIAL_VALUES.keys()):
        return f"nan='formal': {found[0]} in it: {SPECIAL_VALUES[found[0]]}"
    return None
