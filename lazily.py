"""Names of a package or module that are imported from other modules when first asked for."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def pause_collector() -> Iterator[None]:
    """Pause the garbage collector while much is made that stays, without cycles.

    It saves a fifth of the time to plan 10,000 nodes, and a tenth of that to import. Sessions that
    plan for new shapes do not pause it: the setting is process-wide, and their items may leave
    cycles.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def lazily(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package or module.

    Parameters
    ----------
    package : str
        Its ``__name__``.
    modules : Mapping of str to str
        The names, separated by spaces, that come from each other module: relative, as
        ``".session"``. A dot stands for the module itself, by the last part of its name.

    Examples
    --------
    >>> find, names = lazily("collections", {".abc": ". Sized Iterable"})
    >>> find("Sized")
    <class 'collections.abc.Sized'>
    >>> find("abc").__name__
    'collections.abc'
    >>> {"Iterable", "deque"} <= set(names())
    True
    """
    places = {
        module.rpartition(".")[2] if name == "." else name: (module, name)
        for module, names in modules.items()
        for name in names.split()
    }

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = places[name]
        with pause_collector():
            value = importlib.import_module(module, sys.modules[package].__package__)
        if attribute != ".":
            value = getattr(value, attribute)
        setattr(sys.modules[package], name, value)  # found without this function from now on
        return value

    def names() -> list[str]:
        known = vars(sys.modules[package])
        return sorted({*known.get("__all__", known), *places})

    return find, names
