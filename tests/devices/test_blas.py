from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from plait.devices import blas
from plait.devices.cpu import CpuDevice
from threadpoolctl import threadpool_info, threadpool_limits


@pytest.fixture(autouse=True)
def _two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start from a BLAS of two threads, about which the user has said nothing."""
    for name in blas.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    np.ones((2, 2)) @ np.ones((2, 2))
    with threadpool_limits(2, user_api="blas"):
        yield


def threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_an_open_cpu_uses_its_share_of_the_cores_only() -> None:
    device = CpuDevice()
    device.open(cores=1)
    try:
        assert threads() == {1}
    finally:
        device.close()
    assert threads() == {2}


def test_without_a_share_nothing_changes() -> None:
    device = CpuDevice()
    device.open()
    try:
        assert threads() == {2}
    finally:
        device.close()


def test_of_several_limits_the_least_counts() -> None:
    first, second = object(), object()
    blas.limit_threads(first, 2)
    blas.limit_threads(second, 1)
    assert threads() == {1}
    blas.lift_limit(second)
    assert threads() == {2}
    blas.lift_limit(first)


def test_a_user_who_set_the_number_is_not_overruled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    blas.limit_threads(device := object(), 1)
    try:
        assert threads() == {2}
        assert blas.build_environment(1)["OPENBLAS_NUM_THREADS"] == "2"
    finally:
        blas.lift_limit(device)


def test_a_worker_gets_the_number_by_its_environment() -> None:
    environment = blas.build_environment(3)
    assert {environment[name] for name in blas.VARIABLES} == {"3"}


def test_the_limit_is_the_processs_whichever_thread_sets_or_lifts_it() -> None:
    device = CpuDevice()
    for call, expected in ((lambda: device.open(cores=1), {1}), (device.close, {2})):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        assert threads() == expected
