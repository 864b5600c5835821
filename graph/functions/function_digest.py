"""Digests of Python functions and of values, which are the same in every process."""

from __future__ import annotations

import dis
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from hashlib import sha256
from itertools import chain
from types import CodeType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any

import numpy as np

from .function_state import read_closure, walk_functions

_PLAIN = NoneType, bool, int, float, complex, str, bytes
_LOADS = "LOAD_GLOBAL", "LOAD_NAME"


def hash_function(
    function: Callable[..., Any], *, values: bool = False, seen: Iterable[FunctionType] = ()
) -> str:
    """Return a digest of the code of `function` and of the functions of its module that it calls.

    Of a class, all methods count; of a function written in C, the name. Functions in `seen` count
    by name, because they are part of the digest already. With `values`, the values that the code
    reads count, too: defaults, variables of enclosing functions, globals, and the object or the
    arguments that it is bound to. Objects that cannot be pickled count by type.
    """
    parts: list[Any] = [sys.implementation.cache_tag]
    while isinstance(function, partial):
        parts += [function.args, function.keywords]
        function = function.func
    if not isinstance(function, FunctionType | type):
        parts.append(getattr(function, "__self__", function))
    parts = parts if values else parts[:1]
    parts.append(getattr(function, "__qualname__", type(function).__qualname__))
    known = set(seen)
    is_class = isinstance(function, type)
    for one in vars(function).values() if is_class else [function]:
        for found, _ in walk_functions(one, known, decorators=True):
            for code in list_codes(found.__code__):
                parts += [code.co_code, code.co_names, code.co_varnames, code.co_freevars]
                parts += [one for one in code.co_consts if not isinstance(one, CodeType)]
            if values:
                parts += [found.__defaults__, found.__kwdefaults__, *_list_values(found, known)]
    return _join(_hash_leniently(part, known) for part in parts).hex()


def hash_with_constants(function: Callable[..., Any]) -> str:
    """Return a digest of the code of `function` and of the numbers and texts that it is bound to.

    These are defaults, arguments of a `partial`, and variables of enclosing functions. Other
    objects count by type: each call may change them.
    """
    held: list[Any] = []
    target = function
    while isinstance(target, partial):
        held += [*target.args, *target.keywords.items()]
        target = target.func
    if isinstance(target, FunctionType):
        held += [*(target.__defaults__ or ()), *read_closure(target).items()]
    return hash_value((hash_function(function), *map(_keep_constants, held))).hex()


def _keep_constants(value: Any) -> Any:
    if type(value) is tuple:
        return tuple(map(_keep_constants, value))
    return value if type(value) in _PLAIN else type(value).__qualname__


def hash_value(value: Any, seen: Iterable[FunctionType] = ()) -> bytes:
    """Return a digest of the content of `value`; `seen` is that of `hash_function`.

    Fails for a value that cannot be pickled, and is not made of numbers, text, bytes, arrays and
    functions.
    """
    kind, parts = type(value), list[bytes]()
    if kind in _PLAIN:
        parts = [repr(value).encode()]
    elif kind in (list, tuple):
        parts = [hash_value(one, seen) for one in value]
    elif kind is dict:
        parts = [hash_value(one, seen) for pair in value.items() for one in pair]
    elif kind in (set, frozenset):
        parts = sorted(hash_value(one, seen) for one in value)
    elif kind is np.ndarray or isinstance(value, np.generic):
        is_plain = not value.dtype.hasobject
        content = value.tobytes() if is_plain else hash_value(value.tolist(), seen)
        parts = [repr((value.dtype, value.shape)).encode(), content]
    elif isinstance(value, FunctionType | MethodType | partial):
        parts = [hash_function(value, values=True, seen=seen).encode()]
    else:
        name = value.__name__ if isinstance(value, ModuleType) else ""
        parts = [name.encode() or pickle.dumps(value, 5)]
    return _join([kind.__qualname__.encode(), *parts])


def _hash_leniently(value: Any, seen: Iterable[FunctionType]) -> bytes:
    try:
        return hash_value(value, seen)
    except Exception:  # pickling raises errors of any class
        return type(value).__qualname__.encode()


def _join(parts: Iterable[bytes]) -> bytes:
    return sha256(b"".join(len(one).to_bytes(8, "big") + one for one in parts)).digest()


def list_codes(code: CodeType) -> list[CodeType]:
    inside = (list_codes(one) for one in code.co_consts if isinstance(one, CodeType))
    return [code, *chain.from_iterable(inside)]


def read_variables(function: FunctionType) -> dict[str, Any]:
    steps = chain.from_iterable(map(dis.get_instructions, list_codes(function.__code__)))
    names, variables = {one.argval for one in steps if one.opname in _LOADS}, function.__globals__
    read = {name: variables[name] for name in sorted(names & variables.keys())}
    return {**read, **read_closure(function)}


def _list_values(function: FunctionType, seen: set[FunctionType]) -> Iterator[Any]:
    for name, value in read_variables(function).items():
        yield name
        is_code = isinstance(value, FunctionType | type)
        is_code = is_code or (callable(value) and hasattr(value, "__wrapped__"))
        if is_code and value.__module__ != function.__module__:
            yield f"{value.__module__}.{value.__qualname__}"
        else:
            yield hash_function(value, values=True, seen=seen) if is_code else value
