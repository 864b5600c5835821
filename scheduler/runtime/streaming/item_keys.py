"""The keys of items: an entry of each item, or the result of a function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any, TypeAlias

from ....graph.values.errors import suggest_names
from ....graph.values.tensor import name_type
from ...errors import FeedError
from ..variables.keyed_states import KeyFailure, to_key

Key: TypeAlias = str | Callable[[Any], Hashable]


class KeyReader:
    """Reads the keys of items: an entry, which is fed only to an input, or a function's result."""

    def __init__(self, key: Key, inputs: Collection[str]) -> None:
        self._key, self._inputs = key, inputs

    def __call__(self, item: Any) -> tuple[Hashable, Any]:
        try:
            if not isinstance(self._key, str):
                return to_key(self._key(item)), item
            is_mapping = type(item) is dict or isinstance(item, Mapping)  # isinstance is slow here
            if not is_mapping or self._key not in item:
                raise no_entry_error(self._key, item, "which is to be its key")
            key = to_key(item[self._key])
        except Exception as error:  # of any kind: the item fails with it, not with other entries
            fed = isinstance(item, Mapping) and {n: item[n] for n in item if n in self._inputs}
            return KeyFailure(error), fed or item
        if self._key in self._inputs:
            return key, item
        return key, {name: value for name, value in item.items() if name != self._key}


def no_entry_error(name: str, item: object, use: str) -> FeedError:
    names = [*map(str, item)] if isinstance(item, Mapping) else []
    kind = f"it is {name_type(item)}, and has no entries: give a function of it"
    fix = suggest_names(name, names, f"it has: {', '.join(names)}" if names else kind)
    return FeedError(f"the item has no {name!r}, {use}", fix=fix)
