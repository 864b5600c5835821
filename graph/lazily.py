"""Names of a package that are imported from its modules when first asked for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazily(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package.

    Parameters
    ----------
    package : str
        Its ``__name__``.
    modules : Mapping of str to str
        The names, separated by spaces, that come from each of its modules: relative, as
        ``".session"``. One without names is had itself, by the last part of its name.

    Examples
    --------
    >>> find, names = lazily("collections", {".abc": "Sized Iterable"})
    >>> find("Sized")
    <class 'collections.abc.Sized'>
    >>> {"Iterable", "deque"} <= set(names())
    True
    """
    places = {name: module for module, names in modules.items() for name in names.split()}
    places |= {module.rpartition(".")[2]: module for module, names in modules.items() if not names}

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = importlib.import_module(places[name], package)
        if modules[places[name]]:
            value = getattr(value, name)
        setattr(sys.modules[package], name, value)  # found without this function from now on
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places})

    return find, names
