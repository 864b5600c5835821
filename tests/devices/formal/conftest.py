"""Fixtures for tests of definitions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from by_definition import Both


@pytest.fixture(scope="module")
def both() -> Iterator[Both]:
    """Return the formal device and the cpu, open."""
    made = Both()
    made.open()
    yield made
    made.close()
