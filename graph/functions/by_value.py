"""Operators that other processes get by value: functions of notebooks, which cannot be imported."""

from __future__ import annotations

import inspect
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from ..values.errors import OperatorError
from ..values.extras import get_install_command, import_extra


class Sent:
    """A function for other processes, which recreate it from its parts.

    Parameters
    ----------
    name : str
        The operator's.
    make : callable
        Creates the function from `parts`; importable.
    parts : tuple
        Pickled by name if they are at the top level of a file, else by cloudpickle.
    arguments : Mapping of str to object
        Those of `plait.operator`.
    modules : tuple of str
        The modules of `parts`, which are imported there first.
    targets : sequence of callable
        The user's functions among the parts, for errors.
    """

    def __init__(
        self,
        name: str,
        make: Callable[..., Any],
        parts: tuple[Any, ...],
        arguments: Mapping[str, Any],
        modules: tuple[str, ...],
        targets: Sequence[Callable[..., Any]] = (),
    ) -> None:
        self._name, self._make, self._parts = name, make, parts
        self._arguments = dict(arguments)
        self._modules, self._targets = modules, targets
        self._pickled: tuple[bytes, tuple[str, ...]] | None = None

    def __call__(self) -> bytes:
        return self._find()[0]

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules to import first; none for a function that is pickled whole."""
        return self._find()[1]

    def _find(self) -> tuple[bytes, tuple[str, ...]]:
        if self._pickled is None:
            value = _Made(self._make, self._parts), self._arguments
            is_typed = not os.path.exists(getattr(sys.modules["__main__"], "__file__", None) or "")
            with suppress(Exception):  # not at the top level of a module
                if not (is_typed and "__main__" in self._modules):
                    self._pickled = pickle.dumps(value), self._modules
            if self._pickled is None:
                self._pickled = pickle_lazily(value[0], self._arguments, self._targets)(), ()
        return self._pickled


class _Made:
    def __init__(self, make: Callable[..., Any], parts: tuple[Any, ...]) -> None:
        self._make, self._parts = make, parts

    def __reduce__(self) -> Any:
        return self._make, self._parts


def pickle_lazily(
    function: object,
    arguments: Mapping[str, Any],
    targets: Sequence[Callable[..., Any]] | None = None,
) -> Callable[[], bytes]:
    """Return a function that pickles `function` and `arguments` of its operator when first called.

    An error names the culprit in `targets`, by default `function` alone.
    """

    @cache
    def dump() -> bytes:
        cloudpickle = import_extra(
            "cloudpickle",
            f"operator {arguments['name']!r} is sent by value, which cloudpickle does",
            get_install_command("notebook"),
            OperatorError,
        )
        try:
            pickled: bytes = cloudpickle.dumps((function, dict(arguments)))
        except Exception as error:  # of any class that the function refers to
            raise OperatorError(
                f"operator {arguments['name']!r} cannot be sent by value: "
                f"{_find_culprit(targets or (function,), cloudpickle.dumps)}{error}",
                fix="create such an object inside the function, where it runs, or run the function "
                "in this process: on cpu, in a pipeline without workers=",
            ) from error
        return pickled

    return dump


def _find_culprit(targets: Iterable[Any], dump: Callable[[Any], bytes]) -> str:
    """Name the first variable or attribute of `targets` that `dump` refuses, or return ""."""
    for target in targets:
        name = getattr(target, "__qualname__", type(target).__qualname__)
        held = dict(getattr(target, "__dict__", {}))
        if inspect.isfunction(target):
            variables = inspect.getclosurevars(target)
            held |= {**variables.globals, **variables.nonlocals}
        for label, value in held.items():
            try:
                dump(value)
            except Exception:  # of any class that the value refers to
                return f"{name} uses {label!r}, a {type(value).__name__}: "
    return ""
