"""Checks of shape rules on their inputs: dtypes, ranks, lengths, and values known ahead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.operator import Call
from ..values.dims import UNKNOWN, broadcast
from ..values.dtypes import kind_of
from ..values.errors import ShapeError
from ..values.tensor import Dim, Shape, TensorSpec, check_dims

FLOATS = "f"
BOOLS = "b"
SIGNED = "if"
INTEGERS = "iu"
NUMBERS = "iuf"
REALS = "biuf"
REALS_OR_TEXT = "biufO"
ANY = "biufceO"

_WORDS = {
    FLOATS: "a float",
    BOOLS: "bool",
    SIGNED: "a float or signed integer",
    INTEGERS: "an integer",
    NUMBERS: "a float or integer",
    REALS: "a float, an integer or bool",
    REALS_OR_TEXT: "a float, an integer, bool or text",
    ANY: "any dtype",
}


def list_present(call: Call) -> list[TensorSpec]:
    return [spec for spec in call.inputs if spec is not None]


def check_dtype(spec: TensorSpec, kinds: str, label: str = "the input") -> None:
    """Raise ShapeError about `label` unless `spec` has a dtype among `kinds`, such as `FLOATS`."""
    if kind_of(spec.dtype) not in kinds:
        raise ShapeError(
            f"{label} is {spec}, but must be {_WORDS[kinds]} here", fix="insert a Cast"
        )


def find_common_dtype(specs: Sequence[TensorSpec], kinds: str = ANY) -> np.dtype[Any]:
    """Return the dtype, of one of the `kinds`, that all `specs` have, or raise ShapeError."""
    for spec in specs:
        check_dtype(spec, kinds)
    if len({spec.dtype for spec in specs}) > 1:
        raise ShapeError(
            f"inputs have different dtypes: {', '.join(map(str, specs))}", fix="insert a Cast"
        )
    return specs[0].dtype


def may_equal(a: Dim, b: Dim) -> bool:
    """Return whether `a` and `b` may be equal; a symbol may be any number."""
    return a == b or isinstance(a, str) or isinstance(b, str)


def check_rank(spec: TensorSpec, minimum: int, layout: str) -> None:
    """Raise ShapeError if the rank of `spec` is known to be below `minimum`; suggest `layout`."""
    if spec.rank is not None and spec.rank < minimum:
        raise ShapeError(
            f"the input must have at least {minimum} dimensions, got {spec}",
            fix=f"reshape it to {layout}",
        )


def check_form(spec: TensorSpec, form: Sequence[Dim | None], label: str) -> None:
    """Raise ShapeError about `label` unless `spec` can have `form`; None in it fits any length."""
    if spec.shape is None:
        return
    if len(spec.shape) != len(form) or not all(
        wanted is None or may_equal(length, wanted)
        for length, wanted in zip(spec.shape, form, strict=True)
    ):
        listed = ", ".join("any" if length is None else str(length) for length in form)
        raise ShapeError(f"{label} must have the shape [{listed}], got {spec}", fix="reshape it")


def check_per_channel(call: Call, index: int, channels: Dim, label: str) -> None:
    """Raise ShapeError unless input `index` of `call` can be a vector of `channels` numbers."""
    spec = call.spec(index)
    if spec.shape is None:
        return
    if len(spec.shape) != 1 or not may_equal(spec.shape[0], channels):
        raise ShapeError(
            f"{label} must be a vector of length {channels}, got {spec}",
            fix=f"pass one value per channel: a tensor of shape [{channels}]",
        )


def check_broadcastable(spec: TensorSpec, shape: Shape, label: str) -> None:
    """Raise ShapeError about `label` unless `spec` can be repeated to fill `shape`."""
    if spec.shape is None:
        return
    merged = broadcast([spec.shape, shape])
    if len(merged) > len(shape) or not all(map(may_equal, merged, shape)):
        raise ShapeError(
            f"{label} {spec} cannot be repeated to the shape [{', '.join(map(str, shape))}]",
            fix="make each of its dimensions 1 or equal to the one it stands against",
        )


def read_integers(call: Call, index: int, label: str) -> tuple[int, ...] | None:
    """Return the integers of input `index` of `call`, or None if it is absent or not known yet.

    Raises ShapeError about `label` if its dtype is not an integer's, or its rank is over 1.
    """
    if not call.has(index):
        return None
    spec = call.spec(index)
    check_dtype(spec, INTEGERS, label)
    if spec.rank is not None and spec.rank > 1:
        raise ShapeError(f"{label} must be a list of integers, not {spec}", fix="flatten it")
    value = call.value(index)
    return None if value is None else tuple(int(v) for v in value.reshape(-1))


def read_lengths(call: Call, index: int, label: str) -> Shape | None:
    """Return the lengths that input `index` of `call`, called `label`, lists; None if unknown."""
    numbers = read_integers(call, index, label)
    return call.lengths(index) if numbers is None and call.has(index) else numbers


def check_single(call: Call, index: int, label: str) -> None:
    """Raise ShapeError about `label` if input `index` of `call` is known not to be one number."""
    spec = call.inputs[index] if call.has(index) else None
    if spec is not None and spec.shape and not all(may_equal(length, 1) for length in spec.shape):
        raise ShapeError(f"{label} is {spec}, but must be one number", fix="pass a scalar")


def forget_shape(spec: TensorSpec, rank: int | None) -> TensorSpec:
    return TensorSpec(spec.dtype, None if rank is None else (UNKNOWN,) * rank)


def read_rank(call: Call, index: int) -> int | None:
    """Return how many axes, at most numpy's limit, input `index` lists; None if unknown."""
    shape = call.spec(index).shape
    if shape is None or len(shape) > 1:
        return None
    length = shape[0] if shape else 1
    if not isinstance(length, int):
        return None
    check_dims(length)
    return length


def is_computed(call: Call, *indices: int) -> bool:
    """Return whether an input of `call` in `indices` is present but not known before the run."""
    return any(call.has(index) and call.value(index) is None for index in indices)
