"""Which dtypes an operator takes: kinds of numpy dtypes, and the checks of shape rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .errors import ShapeError
from .tensor import TensorSpec

FLOATS = "f"
BOOLS = "b"
SIGNED = "if"
INTEGERS = "iu"
NUMBERS = "iuf"
REALS = "biuf"
ANY = "biufc"

_WORDS = {
    FLOATS: "a float",
    BOOLS: "bool",
    SIGNED: "a float or signed integer",
    INTEGERS: "an integer",
    NUMBERS: "a float or integer",
    REALS: "a float, an integer or bool",
    ANY: "any dtype",
}


def check_dtype(spec: TensorSpec, kinds: str, what: str = "the input") -> None:
    """Raise ShapeError unless the dtype is one of the kinds, such as `FLOATS`."""
    if spec.dtype.kind not in kinds:
        raise ShapeError(
            f"{what} is {spec}, but must be {_WORDS[kinds]} here",
            fix="insert a Cast",
        )


def common_dtype(specs: Sequence[TensorSpec], kinds: str = ANY) -> np.dtype[Any]:
    """Return the dtype that all specs have.

    Raises
    ------
    ShapeError
        If they differ, or it is not one of the kinds.
    """
    for spec in specs:
        check_dtype(spec, kinds)
    if len({spec.dtype for spec in specs}) > 1:
        raise ShapeError(
            f"inputs have different dtypes: {', '.join(map(str, specs))}", fix="insert a Cast"
        )
    return specs[0].dtype
