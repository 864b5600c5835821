"""Where the items of a stream come from: iterables, async iterables, trio channels."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Mapping
from typing import Any, TypeAlias

from ..errors import SessionError

Source: TypeAlias = Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]]


def check_source(source: object, *, blocking: bool = False) -> None:
    """Raise SessionError unless items can be pulled from it, by code that may not await if so."""
    if isinstance(source, Mapping):
        raise SessionError(
            f"a {type(source).__name__} is one item, not a source of items",
            fix="stream from a list of items: [item]; or run the item",
        )
    if not isinstance(source, Iterable if blocking else Iterable | AsyncIterable):
        kinds = "iterable" if blocking else "iterable or async iterable"
        raise SessionError(
            f"a {type(source).__name__} is no source of items",
            fix=f"stream from an {kinds} of mappings of input name to array",
        )
