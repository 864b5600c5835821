"""Values of inputs that stand on the command line: ``--input sr=16000``, ``--input 'x=[1, 2]'``."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from ..graph.errors import OperatorError
from ..graph.exact_number import exact_number
from ..graph.tensor import Array, TensorSpec
from .errors import CommandError

NOTHING: Any = object()
"""What a text says that is no value."""


def parse_literal(text: str) -> Any:
    """Return the number, boolean or list of these that a text is in JSON, or NOTHING."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return NOTHING
    return value if _is_value(value) else NOTHING


def literal_array(name: str, value: Any, spec: TensorSpec) -> Array:
    """Return a value as an input takes it: one number for any shape of one element.

    Raises
    ------
    CommandError
        If its dtype does not hold it, or lists are not of one length.
    """
    at = f"--input {name}"
    try:
        if not isinstance(value, list):
            array = exact_number(value, spec.dtype, at)
        else:
            given = np.array(value)  # what is ragged is refused
            array = given.astype(spec.dtype)
            if spec.dtype.kind in "biu" and not np.array_equal(array, given):
                raise ValueError(f"not all of it is {spec.dtype.name}")
    except (OperatorError, ValueError, OverflowError) as error:
        reason = "" if isinstance(error, OperatorError) else f": {error}"
        raise CommandError(
            f"{at}={json.dumps(value)} is no {spec.dtype.name}{reason}",
            fix=f"the input is {spec}: give numbers that it holds, or a file",
        ) from error
    # What takes one element, in any number of dimensions, takes one number.
    if array.ndim == 0 and all(dim == 1 or isinstance(dim, str) for dim in spec.shape or ()):
        array = array.reshape((1,) * len(spec.shape or ()))
    return array


def _is_value(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_value, value))
    return isinstance(value, bool | int | float)
