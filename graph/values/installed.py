"""Extensions: found by entry points, imported at first use.

A package declares its offers in ``pyproject.toml``, and is imported only when a name is used. So
broken packages only affect their users. Plait's own dialects are listed in
`plait.dialects.ENTRY_POINTS` and loaded by the same functions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from .errors import PlaitError, describe_error, is_ctrl_c

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

OPERATORS, DEVICES, FORMATS = "plait.operators", "plait.devices", "plait.formats"
"""The groups of entry points."""

STANDARD = "ai.onnx"
"""The name of packages with operators of ONNX that plait lacks."""

KERNELS, CODEGEN, DEFINITIONS = "plait.kernels", "plait.codegen", "plait.definitions"
"""Groups of modules that register implementations for operators, by name or prefix."""

EVALUATORS = "plait.evaluators"
"""The group of plait's function that evaluates nodes; packages offer none."""

_DIALECTS = f"{__name__.partition('.')[0]}.dialects"

Offers: TypeAlias = "Mapping[str, list[EntryPoint]]"
"""Entry points by name; each should have one."""

_Asked: TypeAlias = tuple[str, str, tuple[str, ...]]

_offers: dict[tuple[str, tuple[str, ...]], Offers] = {}
_refusals: dict[_Asked, PlaitError] = {}
_loading: ContextVar[tuple[tuple[str, str], ...]] = ContextVar("plait loading", default=())


def find_offers(group: str) -> Offers:
    """Return entry points of `group` on `sys.path` by name, read again if the path changes."""
    key = group, tuple(sys.path)
    if key not in _offers:
        from importlib.metadata import entry_points  # takes 20 ms, and is rarely needed

        found: dict[str, list[EntryPoint]] = {}
        for entry in entry_points(group=group):
            found.setdefault(entry.name, []).append(entry)
        _offers[key] = found
    return _offers[key]


def load(group: str, name: str, kind: type[PlaitError]) -> Any:
    """Load the entry point `name` of `group`; return None if it is not offered, or being loaded.

    Plait's own dialects precede packages. Raises an error of `kind` if it cannot be imported, or
    several packages offer it. Failures are remembered.
    """
    if (group, name) in _loading.get():
        return None
    if name in list_own(group):
        return _load_own(group, name)
    entries = find_offers(group).get(name)
    if entries is None:
        return None
    asked = group, name, tuple(sys.path)
    if asked in _refusals:
        raise _refusals[asked].again()
    try:
        return _load_entry(group, name, entries, kind)
    except PlaitError as error:
        _refusals[asked] = error.again()
        raise


def load_for(group: str, op: str, kind: type[PlaitError]) -> None:
    """Import extensions of operator `op` in `group`: by its name, or the parts of it before a dot.

    Names without a dot belong to plait. Raises errors of `kind` like `load`.
    """
    if "." in op:
        for name in list_prefixes(op):
            load(group, name, kind)


def list_prefixes(name: str) -> Iterator[str]:
    """Yield `name` and its prefixes before dots, the longest first."""
    while name:
        yield name
        name = name.rpartition(".")[0]


@cache
def list_own(group: str) -> Mapping[str, str]:
    """Return names and targets of the entry points in `group` of plait's own dialects."""
    offers: Mapping[str, str] = import_module(_DIALECTS).ENTRY_POINTS.get(group, {})
    return offers


def load_own(group: str, op: str | None = None) -> tuple[Any, ...]:
    """Load plait's own entry points in `group`: all, or those for operator `op`."""
    names = (
        list_own(group)
        if op is None
        else [name for name in list_prefixes(op) if name in list_own(group)]
    )
    return tuple(_load_own(group, name) for name in names if (group, name) not in _loading.get())


def _load_own(group: str, name: str) -> Any:
    module, _, attribute = list_own(group)[name].partition(":")
    with _mark_loading(group, name):
        found = import_module(module, _DIALECTS)
    return getattr(found, attribute) if attribute else found


def describe_package(group: str, name: str) -> str:
    return _describe_package(find_offers(group)[name][0])


def _load_entry(group: str, name: str, entries: list[EntryPoint], kind: type[PlaitError]) -> Any:
    packages = " and ".join(sorted(map(_describe_package, entries)))
    at = f"entry point {name!r} of {group!r}"
    if len(entries) > 1:
        raise kind(f"{packages} offer {name!r}", at=at, fix="uninstall all but one of them")
    try:
        with _mark_loading(group, name):
            return entries[0].load()
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        raise kind(
            f"{name!r} of package {packages} cannot be loaded: {describe_error(error)}",
            at=f"{at}: {entries[0].value}",
            fix="install what it lacks, or another version of it, or uninstall it",
        ) from error


@contextmanager
def _mark_loading(group: str, name: str) -> Iterator[None]:
    """Mark `name` of `group` as being imported, so that looking it up does not import it again."""
    token = _loading.set((*_loading.get(), (group, name)))
    try:
        yield
    finally:
        _loading.reset(token)


def _describe_package(entry: EntryPoint) -> str:
    return "an unnamed one" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
