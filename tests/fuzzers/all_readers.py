"""All readers by name: those with a class of their own, and those listed in a table."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fuzzers.listed_readers import LISTED, ListedReader
from fuzzers.readers import READERS as OF_CLASSES
from fuzzers.readers import Reader

READERS: dict[str, Callable[[], Reader]] = {
    **OF_CLASSES,
    **{name: partial(ListedReader, row) for name, row in LISTED.items()},
}
