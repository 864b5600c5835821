"""Upgrades old forms of ONNX operators to the newest one, the only form of plait's operators.

Most changes moved an attribute into an input: a table lists those. The others have a rule each, in
upgrade_rules.py. Source: the change log of the ONNX operators (onnx.ai), opsets 6 to 28.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from ...core.ir import ABSENT, Node
from ...values.names import Names
from ...values.tensor import Array, TensorSpec
from ..assembly import Assembly

OLDEST_OPSET = 6
NEWEST_OPSET = 28


@dataclass(frozen=True, slots=True)
class Context:
    """The specs and constants that a rule may read, and its source of new names.

    Attributes
    ----------
    assembly : Assembly
        The graph so far; a rule sees everything before its node.
    opset : int
        The version of the operators in the file.
    names : Names
        Every tensor name of the file, and those made since.
    declared : dict of str to TensorSpec
        Specs of the rule's outputs beyond those that the new nodes imply.
    """

    assembly: Assembly
    opset: int
    names: Names
    declared: dict[str, TensorSpec] = field(default_factory=dict)

    def spec(self, name: str) -> TensorSpec:
        return self.assembly.tensors[name]

    def value(self, name: str) -> Array | None:
        """Return the value of the constant `name`; None for an absent or computed tensor."""
        return self.assembly.constants.get(name)

    def constant(self, stem: str, value: Any, dtype: Any) -> str:
        with np.errstate(over="ignore"):  # a bound beyond the dtype's range is an infinity
            array = np.array(value, dtype)
        array.flags.writeable = False
        name = self.names.take(stem)
        self.assembly.add_constant(name, array)
        return name


Rule: TypeAlias = Callable[[Node, Context], Sequence[Node]]


@dataclass(frozen=True, slots=True)
class _Moved:
    """An attribute that became the input at `index`; `dtype` None means that of the first input."""

    attribute: str
    index: int
    dtype: str | None = "int64"
    one_dimensional: bool = False


_AXES = (_Moved("axes", 1),)
_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")

_MOVED: Mapping[str, tuple[int, tuple[_Moved, ...]]] = {
    "Clip": (11, (_Moved("min", 1, None), _Moved("max", 2, None))),
    "DFT": (20, (_Moved("axis", 2),)),
    "Dropout": (12, (_Moved("ratio", 1, "float32"),)),
    "Pad": (11, (_Moved("pads", 1), _Moved("value", 2, None))),
    "ReduceSum": (13, _AXES),
    **{f"Reduce{kind}": (18, _AXES) for kind in _REDUCTIONS},
    "Slice": (10, (_Moved("starts", 1), _Moved("ends", 2), _Moved("axes", 3))),
    "Split": (13, (_Moved("split", 1),)),
    "Squeeze": (13, _AXES),
    "TopK": (10, (_Moved("k", 1, one_dimensional=True),)),
    "Unsqueeze": (13, _AXES),
}
"""The opset in which attributes became inputs, and which."""

_RENAMED = {"Scatter": "ScatterElements", "Upsample": "Resize"}
"""Operators that became deprecated, and the ones that do the same."""

_rules: dict[str, tuple[int, Rule]] = {}


def find_newest_name(op: str) -> str:
    return _RENAMED.get(op, op)


def upgrade(node: Node, context: Context) -> Sequence[Node]:
    """Return the nodes of the newest opset that replace `node`, of the opset of `context`.

    The last one has the node's name; the nodes of a form that is still valid come back unchanged.
    Raises ParseError if the newest operators cannot do it.
    """
    before, moved = _MOVED.get(node.op, (0, ()))
    if context.opset < before:
        node = _move(node, moved, context)
    before, function = _rules.get(node.op, (0, _keep))
    nodes = function(node, context) if context.opset < before else (node,)
    return [replace(made, op=find_newest_name(made.op)) for made in nodes]


def _keep(node: Node, context: Context) -> Sequence[Node]:
    return (node,)


def register_rule(*ops: str, before: int) -> Callable[[Rule], Rule]:
    def decorate(function: Rule) -> Rule:
        _rules.update(dict.fromkeys(ops, (before, function)))
        return function

    return decorate


def _move(node: Node, moved: Sequence[_Moved], context: Context) -> Node:
    inputs, attributes = list(node.inputs), dict(node.attributes)
    for attribute in moved:
        value = attributes.pop(attribute.attribute, None)
        if value is not None:
            inputs += [ABSENT] * (attribute.index + 1 - len(inputs))
            inputs[attribute.index] = context.constant(
                f"{node.name}/{attribute.attribute}",
                [value] if attribute.one_dimensional else value,
                attribute.dtype or context.spec(node.inputs[0]).dtype,
            )
    return replace(node, inputs=tuple(inputs), attributes=attributes)
