"""Parameters of which `make test` runs a third, and `make test-all` the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from zlib import crc32

import pytest


def leave_to_test_all(names: Iterable[str], *, third: int) -> list[Any]:
    """Mark all names as extended but a third, which depends on the names alone.

    Tests that have names in common choose different thirds.
    """
    return [
        pytest.param(name, marks=[] if crc32(name.encode()) % 3 == third else pytest.mark.extended)
        for name in names
    ]
