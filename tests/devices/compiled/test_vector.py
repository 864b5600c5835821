"""Vectors are as wide as the instruction set that Numba compiles for."""

from __future__ import annotations

import pytest
from numba.core import config
from plait.devices.compiled.vector import FEATURES, LANES, find_features


def test_features_are_those_that_numba_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CPU_FEATURES", "+avx2,-avx512f,+fma")
    assert find_features() == {"avx2", "fma"}


def test_a_generic_processor_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CPU_FEATURES", None)
    monkeypatch.setattr(config, "CPU_NAME", "generic")
    assert find_features() == frozenset()


def test_a_vector_fills_a_register() -> None:
    assert (16 if "avx512f" in FEATURES else 8 if "avx2" in FEATURES else 4) == LANES
