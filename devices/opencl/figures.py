"""The model of an OpenCL device until it is measured, from what OpenCL says of it."""

from __future__ import annotations

from dataclasses import replace

from ..kinds import OPENCL
from ..model import DeviceModel
from .driver import ClDevice

ON_PROCESSOR = 2
"""The bit of a device's type that says that it is a processor (CL_DEVICE_TYPE_CPU)."""

CPU_FLOPS, CPU_BYTES = 0.25, 0.5
"""Per compute unit, a core, and cycle. Kernels are written for graphics cards: PoCL on an EPYC does
0.93 Gflop/s of 2 x 2.6 GHz, 2.5 GB/s. Measured 2026-11."""

GPU_FLOPS, GPU_BYTES = 32, 4
"""Per compute unit and cycle: a quarter of what AMD's 64 lanes can do, an eighth of Nvidia's 128,
twice that of Intel's 8; and the bandwidth that cards have for each of theirs."""

UNIFIED_BYTES_PER_S = 30e9
"""Where a graphics processor shares the memory of the host."""


def model_from(device: ClDevice) -> DeviceModel:
    """Return the model that a device's type, units, clock and memory let one expect.

    Orders of magnitude: the units of different makers are not alike.
    """
    cycles_per_s = max(device.max_compute_units, 1) * max(device.max_clock_frequency, 1) * 1e6
    model = replace(OPENCL, memory_bytes=int(device.global_mem_size))
    if device.type & ON_PROCESSOR:
        return replace(
            model,
            flops_per_s=cycles_per_s * CPU_FLOPS,
            bytes_per_s=cycles_per_s * CPU_BYTES,
            submit_s=100e-6,
        )
    widest = cycles_per_s * GPU_BYTES
    return replace(
        model,
        flops_per_s=cycles_per_s * GPU_FLOPS,
        bytes_per_s=min(widest, UNIFIED_BYTES_PER_S) if device.host_unified_memory else widest,
    )
