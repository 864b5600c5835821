"""Tensors that callers fetch: by name, alone or in lists, tuples and mappings of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ...graph.ir import Graph
from ...graph.operators.state import GROUP
from ...graph.tensor import Array
from ..errors import FetchError

Fetches: TypeAlias = "str | list[Any] | tuple[Any, ...] | Mapping[Any, Any]"
"""A tensor's name, or those of several: in lists, tuples and mappings, nested in any way."""


class Fetched:
    """What is fetched, and the form in which it is handed out.

    Parameters
    ----------
    fetches : str, list, tuple or Mapping
        Names of tensors, nested in any way.
    graph : Graph
        That they are of.

    Attributes
    ----------
    names : frozenset of str
        Which tensors these are.

    Raises
    ------
    FetchError
        If that names something else, or nothing.
    """

    __slots__ = ("_fetches", "_graph", "names")

    def __init__(self, fetches: Fetches, graph: Graph) -> None:
        self._fetches = _replaced(fetches, str)
        self._graph = graph
        self.names = frozenset(names_in(fetches))
        if not self.names:
            raise FetchError(
                "nothing is fetched", fix="name a tensor, or leave fetches out for all outputs"
            )

    def arranged(self, results: Mapping[str, Array]) -> Any:
        """Return results in the form of what is fetched; None for groups."""

        def result(name: str) -> Array | None:
            writer = self._graph.producers.get(name)
            return None if writer is not None and writer.op == GROUP else results[name]

        return _replaced(self._fetches, result)


def names_in(fetches: Fetches) -> tuple[str, ...]:
    """Return the names of what is fetched, each once, in the order in which they are there.

    Raises
    ------
    FetchError
        If something else is among them.
    """
    names = dict[str, None]()
    _replaced(fetches, names.setdefault)
    return tuple(names)


def _replaced(fetches: Any, result: Callable[[str], Any]) -> Any:
    """Return something else in place of each name."""
    if isinstance(fetches, str):
        return result(fetches)
    if isinstance(fetches, Mapping):
        return {key: _replaced(one, result) for key, one in fetches.items()}
    if isinstance(fetches, list):
        return [_replaced(one, result) for one in fetches]
    if isinstance(fetches, tuple):
        make = getattr(fetches, "_make", tuple)
        return make(_replaced(one, result) for one in fetches)
    raise FetchError(
        f"a {type(fetches).__name__} is fetched, which is not the name of a tensor",
        fix="name tensors, alone or in lists, tuples and mappings",
    )
