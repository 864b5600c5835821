"""Decompositions of operators into simpler ones: rules, registered by the operator's name.

A rule receives a `DecompositionBuilder`, with which it writes nodes, and the names of the node's
inputs, absent ones as ``""``. It returns the tensors that replace the outputs, or None if it does
not apply to the node. Operators may have several rules, which are tried in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from ..core.attribute import Attributes
from ..core.ir import Node
from ..values.dtypes import kind_of
from ..values.registry import ListRegistry
from ..values.tensor import Array, Shape, TensorSpec

if TYPE_CHECKING:  # passes import the rules
    from ..passes.rewriting import Rewriter

Result: TypeAlias = "str | tuple[str, ...] | None"
Write: TypeAlias = Callable[..., Result]
Operand: TypeAlias = "str | float | Sequence[int] | Array"

R = TypeVar("R", bound=Write)


class Decomposition(NamedTuple):
    write: Write
    wide: bool
    """Whether floats of 16 bits are widened first, for kernels that round only the final result."""


def _import_families() -> None:
    from . import families  # noqa: F401


_rules: ListRegistry[str, Decomposition] = ListRegistry(
    own=_import_families, function_of=lambda listed: listed[0].write
)


def decomposition(*ops: str, wide: bool = True) -> Callable[[R], R]:
    """Return a decorator that registers a rule for the operators `ops`, after existing ones.

    Pass ``wide=False`` only if the operator itself rounds every number that the rule writes.

    Examples
    --------
    >>> from plait.operators import decomposition
    >>> @decomposition("Softsign")
    ... def softsign(builder, x):
    ...     return builder("Div", x, builder("Add", builder("Abs", x), 1.0))
    """

    def decorate(rule: R) -> R:
        for op in ops:
            _rules.all().add(op, Decomposition(rule, wide))
        return rule

    return decorate


def decompositions() -> Mapping[str, Sequence[Decomposition]]:
    return _rules.all()


class DecompositionBuilder:
    """Writes the nodes that replace a node.

    Parameters
    ----------
    rewriter : Rewriter
        Its graph gets the tensors and constants, not the nodes.

    Attributes
    ----------
    nodes : list of Node
        The nodes written so far.
    """

    def __init__(self, rewriter: Rewriter, node: Node) -> None:
        self.node = node
        self.nodes: list[Node] = []
        self.rewriter = rewriter

    def __call__(self, op: str, *operands: Operand, **attributes: Any) -> str:
        """Write a node of `op` with `operands` and `attributes`, and return its one output.

        A float among the operands is a constant of the dtype of the first tensor among them;
        integers in a sequence are a vector of int64; an array is a constant.
        """
        return self.several(1, op, *operands, **attributes)[0]

    def several(self, count: int, op: str, *operands: Operand, **attributes: Any) -> list[str]:
        named = (one for one in operands if isinstance(one, str) and one)
        dtype = next((self.spec(one).dtype for one in named), None)
        inputs = [one if isinstance(one, str) else self._constant(one, dtype) for one in operands]
        # Absent operands at the end are left out, as operators count them.
        while inputs and not inputs[-1]:
            inputs.pop()
        stem = f"{self.node.name}[{op.lower()}]"
        outputs = [self.rewriter.new_tensor(stem) for _ in range(count)]
        made = self.rewriter.make(op, inputs, outputs, name=stem, **attributes)
        self.nodes.append(made)
        return outputs

    @property
    def attributes(self) -> Attributes:
        return self.node.attributes

    @property
    def n_outputs(self) -> int:
        return len(self.node.outputs)

    def spec(self, tensor: str) -> TensorSpec:
        return self.rewriter.tensors[tensor]

    def value(self, tensor: str) -> Array | None:
        """Return the value of the constant `tensor`; None for other tensors and an absent input."""
        return self.rewriter.constants.get(tensor)

    def shape(self, tensor: str) -> tuple[int, ...] | None:
        spec = self.spec(tensor)
        return spec.static_shape if spec.is_static else None

    def dims(self, tensor: str) -> Shape | None:
        """Return the shape of `tensor`, or None if the rank is unknown or a length is 0."""
        shape = self.spec(tensor).shape
        return None if shape is None or 0 in shape else shape

    def lengths(self, tensor: str) -> Operand:
        """Return the shape of `tensor` as an operand: numbers if they are known."""
        return self.shape(tensor) or self("Shape", tensor)

    def constant(self, value: Array) -> str:
        return self._constant(value, None)

    def zero(self, like: str) -> str:
        return self._constant(np.zeros((), self.spec(like).dtype), None)

    def cast(self, tensor: str, dtype: object) -> str:
        """Return `tensor` cast to `dtype`, or unchanged if it has that dtype."""
        name = np.dtype(dtype).name  # type: ignore[call-overload]
        return tensor if self.spec(tensor).dtype.name == name else self("Cast", tensor, to=name)

    def finish(self, results: Sequence[str]) -> list[Node]:
        """Return all nodes; `results` get the names of the outputs of the replaced node."""
        to = {}
        for result, output in zip(results, self.node.outputs, strict=False):
            if output:
                written = {name for node in self.nodes for name in node.outputs}
                # An input, or the result of another output: each tensor has one name.
                if result not in written or result in to:
                    result = self("Identity", result)
                to[result] = output
        renamed = [_rename(node, to) for node in self.nodes]
        # The last one has the node's name, which pins and profiles use.
        if renamed and all(one.name != self.node.name for one in renamed):
            renamed[-1] = replace(renamed[-1], name=self.node.name)
        return renamed

    def _constant(self, value: Any, dtype: Any) -> str:
        if isinstance(value, float):
            with np.errstate(over="ignore"):  # what is too large for the dtype is infinite
                value = np.asarray(value, dtype)
        elif not isinstance(value, np.ndarray):
            value = np.asarray(value, np.int64)
        return self.rewriter.constant(value, f"{self.node.name}[constant]")


def decompose(rewriter: Rewriter, node: Node, rule: Decomposition) -> list[Node] | None:
    """Return the nodes that `rule` writes for `node` with `rewriter`; None if it does not apply."""
    builder = DecompositionBuilder(rewriter, node)
    inputs = list(node.inputs)
    # Decomposed, each step would round to 16 bits; the kernel rounds once.
    narrow = rule.wide and any(_is_narrow(builder.spec(name)) for name in inputs if name)
    if narrow:
        wide = {n: builder.cast(n, "float32") for n in inputs if n and _is_narrow(builder.spec(n))}
        inputs = [wide.get(name, name) for name in inputs]
    # The graph is unchanged until the end: a rule may write nodes and then find that it does not
    # apply.
    found = rule.write(builder, *inputs)
    if found is None:
        return None
    results = (found,) if isinstance(found, str) else found
    if narrow:
        results = tuple(
            builder.cast(one, builder.spec(output).dtype) if output else one
            for one, output in zip(results, node.outputs, strict=False)
        )
    return builder.finish(results)


def _is_narrow(spec: TensorSpec) -> bool:
    return kind_of(spec.dtype) in "fe" and spec.dtype.itemsize < 4


def _rename(node: Node, to: Mapping[str, str]) -> Node:
    inputs, outputs = (
        tuple(to.get(name, name) for name in names) for names in (node.inputs, node.outputs)
    )
    return replace(node, inputs=inputs, outputs=outputs)
