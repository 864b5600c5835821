"""Operators that other processes get by value: functions of notebooks, which nothing can import."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from .errors import OperatorError
from .extras import how_to_install, import_extra


def pickling(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Callable[[], bytes]:
    """Return what pickles a function, with all that it refers to, when it is first sent."""

    @cache
    def pickle() -> bytes:
        cloudpickle = import_extra(
            "cloudpickle",
            f"operator {arguments['name']!r} is sent by value, which cloudpickle does",
            how_to_install("notebook"),
            OperatorError,
        )
        try:
            pickled: bytes = cloudpickle.dumps((function, dict(arguments)))
        except Exception as error:  # of whatever the function refers to
            raise OperatorError(
                f"operator {arguments['name']!r} cannot be sent by value: {error}",
                fix="let it open what it needs by itself, or put it into a module",
            ) from error
        return pickled

    return pickle
