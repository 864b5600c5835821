"""A base of objects that own threads, memory or devices, of which no copy can be made."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn, SupportsIndex

from ..errors import SessionError


class Uncopied:
    """Refuses `pickle`, `copy` and `deepcopy`."""

    INSTEAD: ClassVar[str]
    """How to get what a copy would be for."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise SessionError(
            f"{type(self).__name__} cannot be copied or pickled: it owns what it runs on",
            fix=self.INSTEAD,
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        self.__reduce_ex__(4)
