"""Tests that need two GPUs: copies between them arrive, in order, and how fast they are."""

from __future__ import annotations

import pytest
from plait import devices
from plait.scheduler.costs.measure import measure_peers
from to_and_fro import check_stream, plan_to_and_fro

# CuPy warns on import of things that are none of our business.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

NAMES = "cuda:0", "cuda:1"


@pytest.fixture
def pair() -> None:
    for name in NAMES:
        status = devices.probe(name)
        if not status.found:
            pytest.skip(f"no second CUDA device: {status.reason}")


@pytest.mark.usefixtures("pair")
def test_a_stream_over_two_gpus_is_that_of_the_cpu() -> None:
    check_stream(plan_to_and_fro(NAMES))


@pytest.mark.usefixtures("pair")
def test_copies_between_two_gpus_are_measured() -> None:
    found = measure_peers([devices.find(name) for name in NAMES])
    assert set(found) == {NAMES, NAMES[::-1]}
    assert all(link.bytes_per_s > 1e8 for link in found.values())
