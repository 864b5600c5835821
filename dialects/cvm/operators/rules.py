"""Rules shared by all exact operators: limits of shapes and attributes, and registration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from ....graph.core.attribute import REQUIRED, Attribute, Kind
from ....graph.core.operator import AliasRule, Call, CostRule, Pairs, define, elements
from ....graph.core.traits import NO_FLOATS, NO_TRAITS, PRIMITIVE, Part, Trait
from ....graph.operators.inputs import list_present
from ....graph.values.dims import broadcast
from ....graph.values.errors import OperatorError, ShapeError
from ....graph.values.tensor import Shape, TensorSpec

PREFIX = "cvm."

MAX_RANK = 6
MAX_DIM = 1 << 24
MAX_SIZE = 1 << 30
MAX_ATTRIBUTE = 4096
INT32_MAX = (1 << 31) - 1

ShapeRule: TypeAlias = Callable[[Call], Sequence[Shape | None]]
"""Returns the shape of each output, or None while it does not follow from the inputs."""

Readiness: TypeAlias = Callable[[Call], bool]
"""Returns whether a shape rule can be called with the known specs of the inputs."""


def has_fixed_shapes(call: Call) -> bool:
    return all(spec.is_static for spec in list_present(call))


def has_ranks(call: Call) -> bool:
    """Return whether all inputs of `call` have known ranks, for rules that accept symbols."""
    return all(spec.shape is not None for spec in list_present(call))


def accept_any(call: Call) -> bool:
    return True


def declare(
    name: str,
    *,
    inputs: str = "x",
    outputs: str = "y",
    attributes: Mapping[str, Attribute] | None = None,
    cost: CostRule = elements,
    views: Pairs = (),
    parts: AliasRule | None = None,
    joins: AliasRule | None = None,
    inplace: Pairs = (),
    ready: Readiness = has_fixed_shapes,
    batched: bool = False,
    traits: Trait = NO_TRAITS,
) -> Callable[[ShapeRule], ShapeRule]:
    """Return a decorator that registers operator `name` on int32, with a function as shape rule.

    The rule is called if the inputs are `ready`; otherwise the shapes are unknown. `batched`
    outputs have the first length of the first input, perhaps a symbol. An operator also has
    `inputs`, `outputs`, `attributes`, `cost`, `views`, `parts`, `joins`, `inplace` and `traits`.
    """
    unknown: Sequence[Shape | None] = [None] * len(outputs.split())

    def decorate(rule: ShapeRule) -> ShapeRule:
        def shapes(call: Call) -> Sequence[Shape | None]:
            # Rules accept only numbers: a symbolic batch is replaced by 1, and restored.
            single = _replace_batch(call) if batched else None
            if single is None:
                return rule(call) if ready(call) else unknown
            found = rule(single) if ready(single) else unknown
            return [shape and (*get_known_shape(call)[:1], *shape[1:]) for shape in found]

        def infer(call: Call) -> Sequence[TensorSpec]:
            for spec in list_present(call):
                _check_tensor(spec)
            # Outputs have limits too: a rule may make them larger than all inputs.
            specs = [TensorSpec("int32", shape) for shape in shapes(call)]
            for spec in specs:
                _check_shape(spec, "the output")
            return specs

        define(
            PREFIX + name,
            inputs=inputs,
            outputs=outputs,
            attributes=attributes,
            cost=cost,
            views=views,
            parts=parts,
            joins=joins,
            inplace=inplace,
            traits=traits,
            float16=NO_FLOATS,
            lacks=PRIMITIVE | {Part.GRADIENT: "integers are not numbers to change a little"},
        )(infer)
        return rule

    return decorate


def keep_shape(call: Call) -> Sequence[Shape | None]:
    return (call.spec(0).shape,)


def broadcast_shapes(call: Call) -> Sequence[Shape | None]:
    shapes = [spec.shape for spec in list_present(call) if spec.shape is not None]
    return (broadcast(shapes) if len(shapes) == len(call.inputs) else None,)


def make_int(minimum: int = 0, maximum: int | None = MAX_ATTRIBUTE) -> Attribute:
    return Attribute(Kind.INT, minimum=minimum, maximum=maximum)


def make_ints(
    default: Sequence[int] | None, minimum: int | None = 0, maximum: int | None = MAX_ATTRIBUTE
) -> Attribute:
    return Attribute(Kind.INTS, REQUIRED if default is None else tuple(default), minimum, maximum)


def make_fixed(*words: str) -> Attribute:
    """Return an attribute that accepts only these `words`; the first is the default."""
    return Attribute(Kind.STRING, words[0], choices=words)


def get_known_shape(call: Call, index: int = 0) -> Shape:
    shape = call.spec(index).shape
    assert shape is not None
    return shape


def read_pair(call: Call, name: str) -> tuple[int, int]:
    """Return the two numbers of the attribute `name` of `call`; raises OperatorError otherwise."""
    values = call.attributes[name]
    if len(values) != 2:
        raise OperatorError(
            f"{name} {list(values)} has {len(values)} numbers, 2 are needed",
            fix="give one for the height and one for the width",
        )
    return values[0], values[1]


def get_fixed_shape(call: Call, index: int, rank: int, subject: str) -> tuple[int, ...]:
    spec = call.spec(index)
    if spec.rank != rank:
        raise ShapeError(f"{subject} must have {rank} dimensions, got {spec}", fix="reshape it")
    return spec.static_shape


def check_like(call: Call, index: int, shape: Sequence[int], subject: str) -> None:
    """Raise ShapeError about `subject` unless input `index` of `call` has `shape`."""
    spec = call.spec(index)
    if spec.static_shape != tuple(shape):
        wanted = ", ".join(map(str, shape))
        raise ShapeError(
            f"{subject} must be int32[{wanted}], got {spec}",
            fix="pass what the attributes describe, or correct them",
        )


def check_bias(call: Call) -> bool:
    """Return whether `call` has a bias; raise OperatorError unless `use_bias` agrees."""
    wanted = bool(call.attributes["use_bias"])
    if call.has(2) != wanted:
        raise OperatorError(
            f"use_bias is {wanted}, but the bias is {'absent' if wanted else 'given'}",
            fix="pass a third input if and only if use_bias is True",
        )
    return wanted


def _replace_batch(call: Call) -> Call | None:
    x = call.spec(0)
    if not x.shape or isinstance(x.shape[0], int):
        return None
    return replace(call, inputs=(TensorSpec(x.dtype, (1, *x.shape[1:])), *call.inputs[1:]))


def _check_tensor(spec: TensorSpec) -> None:
    if spec.dtype != "int32":
        raise ShapeError(f"{spec} is not int32", fix="insert a Cast: exact operators take int32")
    _check_shape(spec, "an input")


def _check_shape(spec: TensorSpec, what: str) -> None:
    if spec.shape is None:
        return
    if not 1 <= len(spec.shape) <= MAX_RANK:
        raise ShapeError(
            f"{what} of an exact operator has {len(spec.shape)} dimensions: {spec}",
            fix=f"use 1 to {MAX_RANK}",
        )
    size = 1
    for dim in spec.shape:
        if isinstance(dim, int):
            # In each step: beyond the limit, numbers would grow with the rank.
            size *= dim
            if not 1 <= dim <= MAX_DIM or size > MAX_SIZE:
                raise ShapeError(
                    f"{what} of an exact operator is empty or too large: {spec}",
                    fix="use lengths of 1 to 2**24 each, and at most 2**30 elements",
                )
