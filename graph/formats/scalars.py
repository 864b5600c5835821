"""Headers as msgpack scalars, one after the other.

A list is its length, then its elements. Values do not nest, so that a damaged header's lengths
allocate nothing: reading stops at the end of the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgpack

from ..values.errors import GraphError, ParseError, ShapeError

T = TypeVar("T")


class ScalarWriter:
    """Collects scalars; `parts` are the bytes so far."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._pack: Callable[[Any], bytes] = msgpack.Packer(strict_types=True).pack

    def put(self, *values: Any) -> None:
        """Write the scalars `values`; raise GraphError for other values."""
        for value in values:
            try:
                self.parts.append(self._pack(value))
            except (TypeError, ValueError, OverflowError) as error:
                raise GraphError(
                    f"{value!r} cannot be saved: {error}",
                    fix="use text in UTF-8, numbers of 64 bits, booleans, and sequences of those",
                ) from error

    def put_list(self, elements: Sequence[T], put: Callable[[T], None]) -> None:
        """Write the number of `elements`, then call `put` with each of them."""
        self.put(len(elements))
        for element in elements:
            put(element)


class ScalarReader:
    """Reads scalars; raises ValueError for one of another kind.

    `at` is the file, for messages.
    """

    def __init__(self, data: bytes | memoryview, at: str) -> None:
        self._at = at
        self._nbytes = len(data)
        self._unpacker = msgpack.Unpacker(
            max_buffer_size=max(len(data), 1), max_array_len=0, max_map_len=0, max_ext_len=0
        )
        self._unpacker.feed(data)

    def read(self, whole: Callable[[], T]) -> T:
        """Return the result of `whole`; raises ParseError for damage, or if it leaves bytes."""
        try:
            value = whole()
            if self.left:
                raise ValueError(f"{self.left} bytes too many")
        except (ValueError, TypeError, ShapeError, msgpack.UnpackException) as error:
            detail = error.what if isinstance(error, ShapeError) else str(error)
            raise ParseError(
                f"the header is damaged: {detail or type(error).__name__}",
                at=f"{self._at}, byte {self._unpacker.tell()} of the header",
                fix="save it again",
            ) from error
        return value

    @property
    def left(self) -> int:
        return self._nbytes - int(self._unpacker.tell())

    def scalar(self) -> Any:
        value = self._unpacker.unpack()
        if value is not None and not isinstance(value, bool | int | float | str):
            raise ValueError(f"unexpected {type(value).__name__}")
        return value

    def typed(self, kind: type[T]) -> T:
        value = self._unpacker.unpack()
        if type(value) is not kind:
            raise ValueError(f"expected {kind.__name__}, got {type(value).__name__}")
        return value

    def text(self) -> str:
        return self.typed(str)

    def count(self) -> int:
        value = self.typed(int)
        if value < 0:
            raise ValueError(f"{value} is not a length")
        return value

    def listed(self, read: Callable[[], T]) -> tuple[T, ...]:
        """Read a length, then return as many elements, each from a call of `read`."""
        return tuple(self.repeated(self.count(), read))

    def repeated(self, length: int, read: Callable[[], T]) -> Iterable[T]:
        for _ in range(length):
            yield read()
