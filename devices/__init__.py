"""Devices: where nodes run, and how. One file per device behind one protocol."""

from collections.abc import Sequence

from ..graph.evaluation import evaluate_with
from ..graph.ir import Node
from ..graph.operator import Call
from ..graph.tensor import Array, TensorSpec
from .device import (
    Capabilities,
    Chaining,
    Device,
    Mortal,
    Program,
    Support,
    scratch_name,
    scratch_specs,
)
from .registry import DeviceStatus, find, names, probe, register, unregister


def _cpu(name: str) -> Device:
    from .cpu import CpuDevice

    return CpuDevice(name)


def _worker(name: str) -> Device:
    from .worker.device import WorkerDevice

    return WorkerDevice(name)


def _sim(name: str) -> Device:
    from .sim.device import SimDevice

    return SimDevice(name)


def _formal(name: str) -> Device:
    from .formal.device import FormalDevice

    return FormalDevice(name)


def _ort(name: str) -> Device:
    from .ort.device import OrtDevice

    return OrtDevice(name)


def _compiled(name: str) -> Device:
    from .compiled.device import CompiledDevice

    return CompiledDevice(name)


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
register("cpu", _cpu)
register("worker", _worker, instances=lambda: ("worker:0",))
register("sim", _sim, instances=lambda: ("sim:npu",))
register("formal", _formal)
register("ort", _ort)
register("compiled", _compiled)
register("cuda", _cuda, instances=_cuda_names)
register("opencl", _opencl, instances=_opencl_names)

__all__ = [
    "Capabilities",
    "Chaining",
    "Device",
    "DeviceStatus",
    "Mortal",
    "Program",
    "Support",
    "find",
    "names",
    "probe",
    "register",
    "scratch_name",
    "scratch_specs",
    "unregister",
]
