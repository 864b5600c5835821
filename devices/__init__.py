"""Devices: where nodes run, and how. One file per device behind one protocol.

Examples
--------
>>> import plait as pl
>>> pl.devices.probe("cpu").found
True
"""

from collections.abc import Mapping
from functools import partial

from .device import (
    Capabilities,
    Chaining,
    Configured,
    Device,
    Pollable,
    Program,
    Restartable,
    Support,
    scratch_name,
    scratch_specs,
)
from .kinds import WORKER_ON_GPU
from .options import Option, PortableOption, affinity, flag, one_of, spinning, threads
from .ort.providers import NAN, device_names, options_of
from .registry import DeviceStatus, device, find, later, names, probe, register, unregister

_HOST: Mapping[str, Option] = {"threads": threads, "affinity": affinity}

register("cpu", later(".cpu:CpuDevice"), options=_HOST)
register(
    "worker", later(".worker.device:WorkerDevice"), instances=lambda: ("worker:0",), options=_HOST
)
register("sim", later(".sim.device:SimDevice"), instances=lambda: ("sim:npu",))
register("formal", later(".formal.device:FormalDevice"))
register(
    "ort",
    later(".ort.device:ort_device"),
    instances=device_names,
    options=partial(
        options_of, own={**_HOST, "spinning": spinning, "telemetry": flag, "nan": one_of(NAN)}
    ),
)
register("compiled", later(".compiled.device:CompiledDevice"), options=_HOST)
register("cuda", later(".cuda.device:CudaDevice"), instances=later(".cuda.device:cuda_names"))
register(
    WORKER_ON_GPU,
    later(".cuda.worker:CudaWorkerDevice"),
    instances=later(".cuda.driver:worker_names"),
    options=_HOST,
)
register(
    "opencl", later(".opencl.device:OpenClDevice"), instances=later(".opencl.device:opencl_names")
)

__all__ = [
    "Capabilities",
    "Chaining",
    "Configured",
    "Device",
    "DeviceStatus",
    "Pollable",
    "PortableOption",
    "Program",
    "Restartable",
    "Support",
    "device",
    "find",
    "names",
    "probe",
    "register",
    "scratch_name",
    "scratch_specs",
    "unregister",
]
