"""Tensors that callers fetch: by name, alone or in lists, tuples and mappings of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ...graph.core.ir import Graph
from ...graph.operators.state import GROUP
from ...graph.values.tensor import Array
from ..errors import FetchError

Fetches: TypeAlias = "str | list[Any] | tuple[Any, ...] | Mapping[Any, Any]"
"""A tensor's name, or those of several: in lists, tuples and mappings, nested in any way."""


class Fetched:
    """Fetched tensors, and the structure in which results are returned.

    `fetches` are names of tensors of `graph`, nested in any way. Raises FetchError if a value is
    not a name, or no name is given.
    """

    def __init__(self, fetches: Fetches, graph: Graph) -> None:
        self._fetches = _map_names(fetches, str)
        self._graph = graph
        self.names = frozenset(list_names(fetches))
        if not self.names:
            raise FetchError(
                "nothing is fetched", fix="name a tensor, or leave fetches out for all outputs"
            )

    def arranged(self, results: Mapping[str, Array]) -> Any:
        def result(name: str) -> Array | None:
            writer = self._graph.producers.get(name)
            return None if writer is not None and writer.op == GROUP else results[name]

        return _map_names(self._fetches, result)


def list_names(fetches: Fetches) -> tuple[str, ...]:
    """Return each name in `fetches` once, in order; raise FetchError if a value is not a name."""
    names = dict[str, None]()
    _map_names(fetches, names.setdefault)
    return tuple(names)


def _map_names(fetches: Any, result: Callable[[str], Any]) -> Any:
    if isinstance(fetches, str):
        return result(fetches)
    if isinstance(fetches, Mapping):
        return {key: _map_names(one, result) for key, one in fetches.items()}
    if isinstance(fetches, list):
        return [_map_names(one, result) for one in fetches]
    if isinstance(fetches, tuple):
        make = getattr(fetches, "_make", tuple)
        return make(_map_names(one, result) for one in fetches)
    raise FetchError(
        f"a {type(fetches).__name__} is fetched, which is not the name of a tensor",
        fix="name tensors, alone or in lists, tuples and mappings",
    )
