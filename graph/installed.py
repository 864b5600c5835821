"""Extensions: found by their entry points, imported when somebody uses what they offer.

A package that offers something says so in its ``pyproject.toml``; nothing of it is imported before
somebody uses the name. So one that is broken is an error of those alone who ask for what it offers.
Plait's own dialects are listed in `plait.dialects.ENTRY_POINTS` and loaded by the same functions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from .errors import PlaitError, is_ctrl_c, named_text

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

OPERATORS, DEVICES, FORMATS = "plait.operators", "plait.devices", "plait.formats"
"""The groups of entry points."""

STANDARD = "ai.onnx"
"""The name under which operators of ONNX are offered that plait has not."""

KERNELS, CODEGEN, DEFINITIONS = "plait.kernels", "plait.codegen", "plait.definitions"
"""Groups of modules that register what devices have for operators of a name, or of its parts."""

EVALUATORS = "plait.evaluators"
"""The group of plait's function that computes nodes ahead; packages offer none."""

_DIALECTS = f"{__name__.partition('.')[0]}.dialects"

Offers: TypeAlias = "Mapping[str, list[EntryPoint]]"
"""Who offers a name; it should be one."""

_Asked: TypeAlias = tuple[str, str, tuple[str, ...]]

_offers: dict[tuple[str, tuple[str, ...]], Offers] = {}
_refusals: dict[_Asked, PlaitError] = {}
_loading: ContextVar[tuple[tuple[str, str], ...]] = ContextVar("plait loading", default=())


def offered(group: str) -> Offers:
    """Return what the packages on `sys.path` offer; it is looked up anew when that has changed."""
    key = group, tuple(sys.path)
    if key not in _offers:
        from importlib.metadata import entry_points  # takes 20 ms, and few need it

        found: dict[str, list[EntryPoint]] = {}
        for entry in entry_points(group=group):
            found.setdefault(entry.name, []).append(entry)
        _offers[key] = found
    return _offers[key]


def load(group: str, name: str, kind: type[PlaitError]) -> Any:
    """Return what is offered under a name; None if nothing is, or it is being loaded.

    Plait's own dialects go before packages.

    Raises
    ------
    PlaitError
        Of that kind, if it cannot be imported, or several packages offer it. Nothing is tried
        twice.
    """
    if (group, name) in _loading.get():
        return None
    if name in own(group):
        return _load_own(group, name)
    entries = offered(group).get(name)
    if entries is None:
        return None
    asked = group, name, tuple(sys.path)
    if asked in _refusals:
        raise _refusals[asked].again()
    try:
        return _loaded(group, name, entries, kind)
    except PlaitError as error:
        _refusals[asked] = error.again()
        raise


def load_for(group: str, op: str, kind: type[PlaitError]) -> None:
    """Import what is offered for an operator: under its name, or the parts of it before a dot.

    Names without a dot are nobody's but plait's.

    Raises
    ------
    PlaitError
        As `load`.
    """
    if "." in op:
        for name in leading_parts(op):
            load(group, name, kind)


def leading_parts(name: str) -> Iterator[str]:
    """Yield a name and what stands before each of its dots, the longest first."""
    while name:
        yield name
        name = name.rpartition(".")[0]


@cache
def own(group: str) -> Mapping[str, str]:
    """Return what plait's own dialects offer: the names, and what each stands for."""
    offers: Mapping[str, str] = import_module(_DIALECTS).ENTRY_POINTS.get(group, {})
    return offers


def load_own(group: str, op: str | None = None) -> tuple[Any, ...]:
    """Return what plait's own dialects offer: all of it, or what is for an operator."""
    names = own(group) if op is None else [name for name in leading_parts(op) if name in own(group)]
    return tuple(_load_own(group, name) for name in names if (group, name) not in _loading.get())


def _load_own(group: str, name: str) -> Any:
    module, _, attribute = own(group)[name].partition(":")
    with _being_loaded(group, name):
        found = import_module(module, _DIALECTS)
    return getattr(found, attribute) if attribute else found


def package_of(group: str, name: str) -> str:
    """Return the package that offers a name, with its version."""
    return _package(offered(group)[name][0])


def _loaded(group: str, name: str, entries: list[EntryPoint], kind: type[PlaitError]) -> Any:
    packages = " and ".join(sorted(map(_package, entries)))
    at = f"entry point {name!r} of {group!r}"
    if len(entries) > 1:
        raise kind(f"{packages} offer {name!r}", at=at, fix="uninstall all but one of them")
    try:
        with _being_loaded(group, name):
            return entries[0].load()
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        raise kind(
            f"{name!r} of package {packages} cannot be loaded: {named_text(error)}",
            at=f"{at}: {entries[0].value}",
            fix="install what it lacks, or another version of it, or uninstall it",
        ) from error


@contextmanager
def _being_loaded(group: str, name: str) -> Iterator[None]:
    """Let what is imported ask for its own names without being imported again."""
    token = _loading.set((*_loading.get(), (group, name)))
    try:
        yield
    finally:
        _loading.reset(token)


def _package(entry: EntryPoint) -> str:
    return "an unnamed one" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
