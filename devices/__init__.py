"""Devices: where nodes run, and how. One file per device behind one protocol.

Examples
--------
>>> import plait as pl
>>> pl.devices.probe("cpu").found
True
"""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from ..lazily import lazily
from .device import (
    Capabilities,
    Chaining,
    Configured,
    Device,
    OnDone,
    Pollable,
    Program,
    Restartable,
    StatefulDevice,
    Support,
    Varying,
    scratch_name,
    scratch_specs,
)
from .kinds import WORKER_ON_GPU
from .options import Option, PortableOption, accept_words, affinity, parse_flag, spinning, threads
from .ort.providers import NAN, list_device_names, list_options
from .registry import DeviceStatus, device, find, import_later, names, probe, register, unregister

if TYPE_CHECKING:
    from . import program
    from .cpu import CpuDevice
    from .cuda.device import CudaDevice
    from .cuda.nvrtc import compile_cubin
    from .errors import UnsupportedNodeError
    from .event import Event
    from .lane import ThreadLane
    from .memory import Arena, View, host_arena, host_view
    from .opencl.device import OpenClDevice
    from .operator_instances import OperatorInstances
    from .program import BoundProgram
    from .sim import SimDevice, SimModel, VirtualClock
    from .worker.device import WorkerDevice

_HOST: Mapping[str, Option] = {"threads": threads, "affinity": affinity}

register("cpu", import_later(".cpu:CpuDevice"), options=_HOST)
register(
    "worker",
    import_later(".worker.device:WorkerDevice"),
    instances=lambda: ("worker:0",),
    options=_HOST,
)
register("sim", import_later(".sim.device:SimDevice"), instances=lambda: ("sim:npu",))
register("formal", import_later(".formal.device:FormalDevice"))
register(
    "ort",
    import_later(".ort.device:create_device"),
    instances=list_device_names,
    options=partial(
        list_options,
        own={**_HOST, "spinning": spinning, "telemetry": parse_flag, "nan": accept_words(NAN)},
    ),
)
register(
    "openvino",
    import_later(".openvino.device:OpenVinoDevice"),
    options={"threads": _HOST["threads"]},
)
register("compiled", import_later(".compiled.device:CompiledDevice"), options=_HOST)
register(
    "cuda",
    import_later(".cuda.device:CudaDevice"),
    instances=import_later(".cuda.driver:list_gpus"),
)
register(
    WORKER_ON_GPU,
    import_later(".cuda.worker:CudaWorkerDevice"),
    instances=import_later(".cuda.driver:list_workers"),
    options=_HOST,
)
register(
    "opencl",
    import_later(".opencl.device:OpenClDevice"),
    instances=import_later(".opencl.driver:list_names"),
)

__all__ = [
    "Arena",
    "BoundProgram",
    "Capabilities",
    "Chaining",
    "Configured",
    "CpuDevice",
    "CudaDevice",
    "Device",
    "DeviceStatus",
    "Event",
    "OnDone",
    "OpenClDevice",
    "OperatorInstances",
    "Pollable",
    "PortableOption",
    "Program",
    "Restartable",
    "SimDevice",
    "SimModel",
    "StatefulDevice",
    "Support",
    "ThreadLane",
    "UnsupportedNodeError",
    "Varying",
    "View",
    "VirtualClock",
    "WorkerDevice",
    "compile_cubin",
    "device",
    "find",
    "host_arena",
    "host_view",
    "names",
    "probe",
    "program",
    "register",
    "scratch_name",
    "scratch_specs",
    "unregister",
]

__getattr__, __dir__ = lazily(  # which import kernels, processes or drivers
    __name__,
    {
        ".cpu": "CpuDevice",
        ".cuda.device": "CudaDevice",
        ".cuda.nvrtc": "compile_cubin",
        ".errors": "UnsupportedNodeError",
        ".event": "Event",
        ".lane": "ThreadLane",
        ".memory": "Arena View host_arena host_view",
        ".opencl.device": "OpenClDevice",
        ".operator_instances": "OperatorInstances",
        ".program": ". BoundProgram",
        ".sim": "SimDevice SimModel VirtualClock",
        ".worker.device": "WorkerDevice",
    },
)
