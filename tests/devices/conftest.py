"""Fixtures for tests of devices."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cupy_double import CupyDouble


@pytest.fixture
def double() -> Iterator[CupyDouble]:
    """A fake GPU on which nothing may stay allocated or page-locked."""
    made = CupyDouble()
    yield made
    made.gpu.check_freed()
