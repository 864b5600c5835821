"""Devices: where nodes run, and how. One file per device behind one protocol.

Examples
--------
>>> import plait as pl
>>> pl.devices.probe("cpu").found
True
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ..graph.evaluation import evaluate_with
from ..graph.ir import Node
from ..graph.operator import Call
from ..graph.tensor import Array, TensorSpec
from .device import (
    Capabilities,
    Chaining,
    Configured,
    Device,
    Program,
    Restartable,
    Support,
    scratch_name,
    scratch_specs,
)
from .options import Option, affinity, spinning, threads
from .ort.providers import device_names, options_of, place_of
from .registry import DeviceStatus, device, find, names, probe, register, unregister


def _cpu(name: str, **options: Any) -> Device:
    from .cpu import CpuDevice

    return CpuDevice(name, **options)


def _worker(name: str, **options: Any) -> Device:
    from .worker.device import WorkerDevice

    return WorkerDevice(name, **options)


def _sim(name: str) -> Device:
    from .sim.device import SimDevice

    return SimDevice(name)


def _formal(name: str) -> Device:
    from .formal.device import FormalDevice

    return FormalDevice(name)


def _ort(name: str, **options: Any) -> Device:
    place = place_of(name)
    if place is not None:
        from .ort.provider_device import device_on

        return device_on(name, place, **options)
    from .ort.device import OrtDevice

    return OrtDevice(name, **options)


def _compiled(name: str, **options: Any) -> Device:
    from .compiled.device import CompiledDevice

    return CompiledDevice(name, **options)


def _cuda(name: str) -> Device:
    from .cuda.device import CudaDevice

    return CudaDevice(name)


def _cuda_names() -> tuple[str, ...]:
    from .cuda.device import cuda_names

    return cuda_names()


def _opencl(name: str) -> Device:
    from .opencl.device import OpenClDevice

    return OpenClDevice(name)


def _opencl_names() -> tuple[str, ...]:
    from .opencl.device import opencl_names

    return opencl_names()


def _evaluate(node: Node, call: Call, specs: Sequence[TensorSpec]) -> dict[str, Array] | None:
    from .evaluating import evaluate

    return evaluate(node, call, specs)


evaluate_with(_evaluate)
_HOST: Mapping[str, Option] = {"threads": threads, "affinity": affinity}

register("cpu", _cpu, options=_HOST)
register("worker", _worker, instances=lambda: ("worker:0",), options=_HOST)
register("sim", _sim, instances=lambda: ("sim:npu",))
register("formal", _formal)
register(
    "ort",
    _ort,
    instances=device_names,
    options=partial(options_of, own={**_HOST, "spinning": spinning}),
)
register("compiled", _compiled, options=_HOST)
register("cuda", _cuda, instances=_cuda_names)
register("opencl", _opencl, instances=_opencl_names)

__all__ = [
    "Capabilities",
    "Chaining",
    "Configured",
    "Device",
    "DeviceStatus",
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
