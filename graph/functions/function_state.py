"""Python functions that keep state between calls, recognized by their source.

A call that depends on the one before must not overlap it. Such functions store to a global or to a
variable of an enclosing function, to an element or attribute of one, of a default value or of an
argument of a partial, call ``next`` for one, or return an array that lives there. Nothing is run,
so state that a library or an object keeps for a function is not found.
"""

from __future__ import annotations

import ast
import dis
import inspect
import textwrap
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

MUTATORS = frozenset(
    {
        *("add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "fill"),
        *("insert", "pop", "popitem", "popleft", "put", "remove", "resize", "reverse", "rotate"),
        *("setdefault", "setflags", "sort", "update", "write"),
    }
)
"""Methods that change the object they are called on."""

_MUTABLE = (bytearray, deque, dict, list, set, np.ndarray)
"""Default values of arguments that outlive a call."""

_STORES = {"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "DELETE_DEREF"}


def find_state(function: Callable[..., Any]) -> str:
    """Return the name of a variable in which `function` keeps state, or ""."""
    for found, n_bound in walk_functions(function, set()):
        code = found.__code__
        outer, tree = _Outer(found, code.co_varnames[:n_bound]), _parse(found)
        names = chain(
            _find_stores(code, frozenset(code.co_freevars)),
            outer.find_changes(tree) if tree is not None else (),
        )
        if name := next(names, ""):
            return name
    return ""


def walk_functions(
    function: Any, seen: set[FunctionType], *, decorators: bool = False
) -> Iterator[tuple[FunctionType, int]]:
    """Yield the plain function of `function`, and those of its module that it calls, except `seen`.

    The second value is the number of arguments that are the same in all calls: the object of a
    method, those of a partial. With `decorators`, functions around others are yielded, too.
    """
    plain, n_bound = FunctionType | MethodType | type, 0
    while isinstance(function, partial):
        n_bound, function = n_bound + len(function.args), function.func
    if not isinstance(function, plain) and callable(function):
        function = getattr(function, "__wrapped__", function.__call__)  # such as lru_cache's
    n_bound += inspect.ismethod(function)
    function = getattr(function, "__func__", function)
    while decorators and hasattr(function, "__wrapped__") and function not in seen:
        if isinstance(function, FunctionType):
            seen.add(function)
            yield function, 0
        function = function.__wrapped__
    function = inspect.unwrap(function)
    if not isinstance(function, FunctionType) or function in seen:
        return
    seen.add(function)
    yield function, n_bound
    for name in function.__code__.co_names:
        called = function.__globals__.get(name)
        if isinstance(called, FunctionType) and called.__module__ == function.__module__:
            yield from walk_functions(called, seen, decorators=decorators)


def find_code(target: Any) -> Any:
    """Return the function that runs when `target` is called."""
    while isinstance(target, partial):
        target = target.func
    return target if inspect.isroutine(target) else type(target).__call__


def _find_stores(code: CodeType, free: frozenset[str]) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in _STORES:
            name = str(instruction.argval)
            if instruction.opname.endswith("GLOBAL") or name in free:
                yield name
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _find_stores(constant, free)


def _parse(function: FunctionType) -> ast.AST | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    found = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda))
    return next(found, None)


class _Outer:
    """The variables of a function that outlive its calls."""

    def __init__(self, function: FunctionType, owned: tuple[str, ...]) -> None:
        self._values = {**function.__globals__, **read_closure(function)}
        code, defaults = function.__code__, function.__defaults__ or ()
        names = code.co_varnames[: code.co_argcount][-len(defaults) :] if defaults else ()
        kept = {**dict(zip(names, defaults, strict=True)), **(function.__kwdefaults__ or {})}
        kept = {name: one for name, one in kept.items() if isinstance(one, _MUTABLE)}
        self._values |= kept
        self._locals = {*code.co_varnames, *code.co_cellvars}.difference(owned, kept)
        self._owned = owned
        self._aliases: dict[str, str] = {}  # locals that are parts of outer arrays

    def find_changes(self, tree: ast.AST) -> Iterator[str]:
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Name(id=local)], value=value) if self._array(value):
                    self._aliases[local] = self._array(value)
                case (
                    ast.Subscript(ctx=ast.Store() | ast.Del())
                    | ast.Attribute(ctx=ast.Store() | ast.Del())
                ):
                    yield from self._root(node)
                case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method in MUTATORS:
                    yield from self._root(owner)
                case ast.Call(func=ast.Name(id="next"), args=[iterator, *_]):
                    yield from self._root(iterator)
                case ast.keyword(arg="out", value=target):
                    yield from self._root(target)
                case ast.Return(value=ast.AST() as value) if name := self._array(value):
                    yield name

    def _root(self, node: ast.AST) -> Iterator[str]:
        """Yield the outer variable that `node` is an element or attribute of, if any."""
        while isinstance(node, ast.Subscript | ast.Attribute):
            node = node.value
        name = node.id if isinstance(node, ast.Name) else ""
        if name in self._locals:
            name = self._aliases.get(name, "")
        value = self._values.get(name)
        is_code = isinstance(value, ModuleType | type | FunctionType | BuiltinFunctionType)
        if name in self._owned or (name in self._values and not is_code):
            yield name

    def _array(self, node: ast.AST) -> str:
        """Return the name of the outer variable with the array of which `node` is a part, or ""."""
        name = next(self._root(node), "")
        value = self._values.get(name)
        return name if isinstance(value, np.ndarray) and value.flags.writeable else ""


def read_closure(function: FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found
