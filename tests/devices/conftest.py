"""Fixtures for tests of devices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cupy_double import CupyDouble

from .worker_bench import Bench, Gate


@pytest.fixture
def double() -> Iterator[CupyDouble]:
    """A fake GPU on which nothing may stay allocated or page-locked."""
    made = CupyDouble()
    yield made
    made.gpu.check_freed()


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A worker to try programs on."""
    made = Bench()
    yield made
    made.close()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """Where a function waits until it is let through."""
    return Gate(tmp_path / "gate")
