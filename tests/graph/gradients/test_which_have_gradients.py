"""Every operator has a gradient, or says here why it has none."""

from __future__ import annotations

from plait.graph.gradients import differentiable
from plait.graph.gradients.via_decomposition import is_written_out
from plait.graph.operator import find_operator, operators

BITS = ("BitCast", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor")
TRUTH = ("And", "Equal", "Not", "Or")
PLACES = ("NonMaxSuppression", "NonZero")
WITHOUT = {
    **dict.fromkeys(BITS, "bits are no numbers to change a little"),
    **dict.fromkeys(TRUTH, "truth has no slope"),
    **dict.fromkeys(PLACES, "they put out indices"),
    "BoundedCall": "it is a Python function, in plans alone",
    "Fused": "passes make it, of graphs whose gradients are there",
    "Group": "it puts out that something happened",
    "Unique": "what is equal to what jumps",
    "Variable": "it has no inputs",
}


def test_every_operator_has_a_gradient_or_a_reason() -> None:
    ours = {op for op in operators() if not find_operator(op).function}  # not what tests define
    known = {op for op in ours if find_operator(op).infer.__module__.startswith("plait.")}
    found = {op for op in known if op not in differentiable() and not is_written_out(op)}
    of_integers = {op for op in found if op.startswith("cvm.")}
    of_plans = {op for op in found if op.startswith("Bounded.")}
    assert found - of_integers - of_plans == set(WITHOUT)
