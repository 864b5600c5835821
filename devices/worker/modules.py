"""Modules that a worker imports before it can load a graph.

A graph names its operators. The user's operators are defined, by a decorator, when one of the
user's
modules is imported; so a worker imports that module. A script is a module, too: the worker runs it
under another name than ``__main__``, which skips the code under ``if __name__ == "__main__"``.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from ...graph.core.ir import Graph, Node
from ...graph.core.nested import list_graphs
from ...graph.core.operator import (
    find_operator,
    is_operator,
    list_known_operators,
    register_operator,
    unregister_operator,
)
from ...graph.functions.by_value import Sent
from ...graph.functions.python import operator
from ...graph.values.errors import describe_error
from ..errors import DeviceError
from ..kernels.registry import list_kernels_for

MAIN = "__plait_main__"
"""The name under which a worker runs the script that its parent runs as ``__main__``."""

_PACKAGE = __name__.partition(".")[0]


GUARD = 'if __name__ == "__main__"'

on_nesting: list[Callable[[], object]] = []
"""Called when a worker that imports a module is asked to start workers."""


class Source(NamedTuple):
    """The module, script or pickle that defines an operator."""

    op: str
    module: str
    """The module's name; ``MAIN`` for the script."""
    file: str | None
    """None for modules that are not loaded from a file."""
    package: str
    """The base of the script's relative imports; empty for other modules."""
    value: bytes = b""
    """The pickled function of an operator that is sent by value; empty for others."""


def list_sources(graph: Graph) -> tuple[Source, ...]:
    """Return a `Source` (module, script or pickle) for each operator of `graph` outside plait.

    Raises DeviceError if a worker cannot import one of them.
    """
    found = (source for node in graph.nodes for source in list_node_sources(node))
    return tuple(dict.fromkeys(found))


def list_node_sources(node: Node) -> tuple[Source, ...]:
    """Return the sources of the operator and kernels of `node` that a worker may lack.

    Raises DeviceError if a worker cannot import them.
    """
    if (by_value := node.operator.by_value) is not None:
        imported = by_value.modules if isinstance(by_value, Sent) else ()
        first = (_make_source(node.op, name) for name in imported if not _is_own(name))
        return (*first, Source(node.op, "", None, "", by_value()))
    modules = dict.fromkeys(
        name for one in _iterate_definers(node) for name in _iterate_modules(node, one)
    )
    # Operators of plait are found by name, but their functions have to be imported.
    is_function = node.operator.function is not None
    needed = (name for name in modules if not _is_own(name) or (name and is_function))
    own = tuple(_make_source(node.op, name) for name in needed)
    nested = (list_node_sources(inner) for graph in list_graphs(node) for inner in graph.nodes)
    return own + tuple(chain.from_iterable(nested))


def import_sources(
    wanted: Sequence[Source], end: Callable[[DeviceError], object] = lambda _: None
) -> None:
    """Import the modules of `wanted` and check that they define their operators.

    If one starts workers, `end` is called with the error: the module could catch an exception.
    Raises DeviceError if a module cannot be imported, or does not define its operator.
    """
    for source in wanted:
        if source.value:
            _define_by_value(source)
        elif source.module not in sys.modules:
            nested = DeviceError(
                f"importing {_describe_source(source)} starts workers, in a worker",
                at=f"operator {source.op!r}",
                fix=f"let a script do its work under {GUARD}",
            )
            on_nesting.append(partial(end, nested))
            try:
                _import(source)
            except BaseException as error:
                raise DeviceError(
                    f"a worker cannot import {_describe_source(source)}: {describe_error(error)}",
                    at=f"operator {source.op!r}",
                    fix="make the module importable on its own; let a script do its work under "
                    + GUARD,
                ) from error
            finally:
                on_nesting.clear()
    for source in wanted:
        if not is_operator(source.op):
            raise DeviceError(
                f"importing {_describe_source(source)} does not define operator {source.op!r}",
                fix=f"define it at the top level of the module, above {GUARD}",
            )


def _iterate_definers(node: Node) -> Iterator[Callable[..., Any]]:
    operator = node.operator
    if operator.function is not None:
        yield operator.function
        return
    yield operator.infer
    for kernel in list_kernels_for(node.op, "cpu"):  # the process has to choose among the same
        yield kernel.function


def _iterate_modules(node: Node, definer: Callable[..., Any]) -> Iterator[str]:
    name = getattr(definer, "__module__", None) or ""
    if "<locals>" in getattr(definer, "__qualname__", "") and not _is_own(name):
        raise DeviceError(
            f"operator {node.op!r} is defined inside a function, from where a worker cannot import "
            "it: move it to the top level of a module, or send the function itself, by "
            "operator(..., by_value=True)"
        )
    yield name
    if definer is node.operator.function:
        yield node.operator.module


def _is_own(module: str) -> bool:
    return module.partition(".")[0] in ("", _PACKAGE)


def _make_source(op: str, name: str) -> Source:
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    file = os.path.abspath(file) if file and os.path.exists(file) else None  # not "<stdin>"
    if name != "__main__":
        return Source(op, name, file, "")
    if file is None:
        raise DeviceError(
            f"operator {op!r} is defined in an interactive session, from which a worker cannot "
            "import it: put it into a module, in a notebook by %%writefile steps.py, or send the "
            "function itself, by operator(..., by_value=True)"
        )
    return Source(op, MAIN, file, getattr(module, "__package__", None) or "")


def _define_by_value(source: Source) -> None:
    try:
        function, arguments = pickle.loads(source.value)
        if is_operator(source.op):
            if find_operator(source.op).function is function:
                return  # its module was imported, which defines it
            unregister_operator(source.op)
        operator(**arguments)(function)
    except BaseException as error:
        fix = "see that the packages that it uses are installed there, cloudpickle too"
        if isinstance(error, AttributeError) and MAIN in str(error):
            fix = f"move it to the top level of the script, above {GUARD}"
        raise DeviceError(
            f"a worker cannot take the function by value: {describe_error(error)}",
            at=f"operator {source.op!r}",
            fix=fix,
        ) from error


def _describe_source(source: Source) -> str:
    return f"{source.file}" if source.module == MAIN else f"module {source.module!r}"


def _import(source: Source) -> None:
    if source.module == MAIN:
        assert source.file is not None
        _run_script(source.file, source.package)
        return
    spec = _find_spec(source.module)
    if source.file is None or (spec is not None and spec.origin == source.file):
        importlib.import_module(source.module)
        return
    # The parent loaded it by other means, as test runners do: load that very file.
    spec = spec_from_file_location(source.module, source.file)
    loader = None if spec is None else spec.loader
    if spec is None or loader is None:
        raise ImportError(f"{source.file} is not a Python source file")
    module = module_from_spec(spec)
    _execute(module, lambda: loader.exec_module(module))


def _find_spec(name: str) -> ModuleSpec | None:
    try:
        return find_spec(name)
    except (ImportError, ValueError):
        return None


def _run_script(file: str, package: str) -> None:
    module = ModuleType(MAIN)
    module.__file__, module.__package__ = file, package
    code = compile(Path(file).read_bytes(), file, "exec")
    _execute(module, lambda: exec(code, vars(module)))
    sys.modules["__main__"] = module  # pickles of the parent name its classes by this module
    for name in list_known_operators():
        if name.startswith(f"{MAIN}."):
            register_operator(replace(find_operator(name), name=f"__main__{name[len(MAIN) :]}"))


def _execute(module: ModuleType, execute: Callable[[], None]) -> None:
    sys.modules[module.__name__] = module
    try:
        execute()
    except BaseException:
        del sys.modules[module.__name__]
        raise
