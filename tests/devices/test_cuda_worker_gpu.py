"""Workers on a real GPU: few tests, since a process with CuPy takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from bound import Bound
from gates import Gate
from plait.devices.cuda.worker import CudaWorkerDevice
from plait.devices.errors import DeviceUnavailableError

from . import cuda_worker_functions as functions
from . import test_cuda_worker as on_double
from .test_cuda_worker import X, calling, gate

__all__ = ["gate"]

# CuPy warns on import of things that are none of our business.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


def opened() -> CudaWorkerDevice:
    made = CudaWorkerDevice()
    try:
        made.open()
    except DeviceUnavailableError as error:
        pytest.skip(f"no CUDA device: {error.what}")
    return made


@pytest.fixture(scope="module")
def worker() -> Iterator[CudaWorkerDevice]:
    """Return one that all tests share which leave it alive."""
    made = opened()
    yield made
    made.close()


@pytest.fixture
def machine() -> on_double.Machine:
    return on_double.Machine(None)


test_a_function = on_double.test_a_function_gets_and_returns_arrays_on_the_gpu
test_results_constants_and_kernels = on_double.test_several_results_constants_and_kernels
test_queued_work = on_double.test_work_that_a_function_only_queued_is_done_when_its_program_is
test_errors = on_double.test_errors_name_the_node_and_leave_the_process


def test_a_function_on_tensors_of_pytorch(worker: CudaWorkerDevice) -> None:
    pytest.importorskip("torch")
    with Bound(worker, calling(functions.scale_by_torch)) as bound:
        np.testing.assert_array_equal(bound.run(x=X)["y"], X * 3)


def test_small_arenas_beside_each_other(worker: CudaWorkerDevice) -> None:
    """CUDA shares the whole block of 2 MiB that they lie in; each is found at its place."""
    bounds = [Bound(worker, on_double.between(functions.scale, by=float(n))) for n in range(2, 8)]
    for factor in (1, 3):
        for n, bound in enumerate(bounds, 2):
            np.testing.assert_array_equal(bound.run(x=X * factor)["y"], X * factor * 2 * n)
    for bound in bounds:
        bound.close()


def test_a_kernel_that_writes_wild_takes_nothing_along(machine: on_double.Machine) -> None:
    own = opened()
    on_double.test_a_process_that_ends_takes_nothing_along("wild", machine, own)
    own.close()


def test_a_worker_is_killed_in_the_middle_of_a_kernel(
    worker: CudaWorkerDevice, machine: on_double.Machine, gate: Gate
) -> None:
    assert worker.pid is not None  # there is a GPU
    endless = functions.compute_endlessly
    on_double.test_an_item_that_is_given_up_has_its_worker_killed(endless, machine, gate)
