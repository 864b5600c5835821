"""The process of a worker on a fake GPU, of which it opens the memory that its parent has shared.

Its functions use the double as those of users use CuPy: on the default stream.
"""

from __future__ import annotations

from typing import Any

from cupy_double import CupyDouble
from plait.devices.cuda.worker import CudaWorkerDevice
from plait.devices.cuda.worker_process import GpuArrays
from plait.devices.kinds import get_gpu
from plait.devices.worker import process


class WorkersDouble(CupyDouble):
    """CuPy in a worker, whose current stream is the default one."""

    def _current_stream(self) -> int:
        if self.null_stream is None:
            self.null_stream = self.gpu.new_stream(0)
        return self.null_stream


cupy = WorkersDouble(devices=2)
"""What functions find in the process of a worker; in others it is of no use."""


def main(name: str, connection_fd: int, flags_fd: int, parent: int) -> None:
    """Serve the parent."""
    process.main(name, connection_fd, flags_fd, parent, lambda own: GpuArrays(own, cupy))


def worker_on(double: CupyDouble, name: str = "worker:cuda:0", **options: Any) -> CudaWorkerDevice:
    """Return a worker on the GPU of a double that shares its memory."""
    gpu = double.device(get_gpu(name))
    return CudaWorkerDevice(name, gpu=gpu, module=__name__, **options)
