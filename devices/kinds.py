"""Facts about plait's kinds of devices, derived from a name alone.

Callers have names, also of devices that are not on this machine: hence tables instead of
attributes. The `model` and `capabilities` of a present device take precedence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .cuda.names import parse_share
from .kernel_factors import FACTORS
from .memory import HOST, SHARED
from .model import DeviceModel
from .ort.providers import KIND, get_provider_kind, parse_place

_HOST = DeviceModel(
    flops_per_s=150e9,
    bytes_per_s=20e9,
    operators=FACTORS["cpu"],
    copy_bytes_per_s=5e9,
    copy_latency_s=20e-6,
    launch_s=3e-6,
    submit_s=25e-6,
    copy_queues=0,
    is_guess=True,
)

_CUDA = DeviceModel(
    flops_per_s=8e12,
    bytes_per_s=400e9,
    copy_bytes_per_s=10e9,
    copy_latency_s=20e-6,
    launch_s=8e-6,
    submit_s=20e-6,
    is_guess=True,
)

_UNKNOWN = DeviceModel(is_guess=True)

OPENCL = DeviceModel(
    flops_per_s=1e12,
    bytes_per_s=50e9,
    copy_bytes_per_s=5e9,
    copy_latency_s=50e-6,
    launch_s=10e-6,
    submit_s=50e-6,
    is_guess=True,
)
"""A small graphics card; found devices have figures of their own."""

WORKER_ON_GPU = "worker:cuda"
"""The kind of workers with arrays in a GPU's memory."""

MODELS: Mapping[str, DeviceModel] = {
    "cpu": _HOST,
    "worker": replace(_HOST, submit_s=60e-6, copy_queues=1),
    "compiled": replace(_HOST, operators=FACTORS["compiled"], launch_s=2e-6),
    "ort": replace(
        _HOST,
        operators=FACTORS["ort"],
        launch_s=2e-6,
        submit_s=40e-6,
        layout_bytes_per_s=5e9,  # a YOLO cut into 36 programs: 0.19 ms for each MB
    ),
    "openvino": replace(_HOST, operators=FACTORS["ort"], launch_s=2e-6, submit_s=150e-6),
    "formal": replace(_HOST, flops_per_s=1e6, bytes_per_s=4e6, operators={}, launch_s=20e-6),
    "cuda": _CUDA,
    WORKER_ON_GPU: replace(_CUDA, submit_s=130e-6),  # on an H200
    "opencl": OPENCL,
    "sim": DeviceModel(memory_bytes=4 << 30, is_guess=True),
}
"""Figures of processors are for one core of a server of about 2023, with the factor by which each
operator's kernels are slower; of others, orders of magnitude. Measured ones replace them:
`plait devices --measure`.
"""

_PROVIDERS: Mapping[str, DeviceModel] = {
    "cpu": replace(MODELS["ort"], submit_s=60e-6),
    **dict.fromkeys(
        ("gpu", "npu"), replace(OPENCL, submit_s=200e-6, copy_queues=0, layout_bytes_per_s=5e9)
    ),
}
"""For providers of ONNX Runtime, by hardware: inputs and outputs are copied in each run."""

_MEMORIES = {"worker": SHARED}
_MEMORIES |= dict.fromkeys(("cpu", "compiled", "ort", "openvino", "formal"), HOST)
"""The memory of their arenas; a device of another kind has its own memory, with its own name."""

_KERNELS_OF = {"worker": "cpu"}
"""The kind that lends its kernels: a worker is a cpu elsewhere."""


def get_kind(name: str) -> str:
    """Return the kind of device `name`: the part of its name before the colon.

    Devices of one kind share kernels. The kind of a provider of ONNX Runtime includes the provider,
    and its hardware unless it is the usual one. Workers on GPUs have their own kind.

    Examples
    --------
    >>> get_kind("worker:0"), get_kind("ort:second"), get_kind("ort:openvino:0")
    ('worker', 'ort', 'ort:openvino')
    >>> get_kind("worker:cuda:0")
    'worker:cuda'
    """
    kind, colon, instance = name.partition(":")
    if colon and kind == KIND:
        return get_provider_kind(name) or kind
    longer = f"{kind}:{instance.partition(':')[0]}"
    return longer if longer in MODELS else kind


def get_gpu(name: str) -> str:
    """Return the GPU of worker `name`.

    Examples
    --------
    >>> get_gpu("worker:cuda:1"), get_gpu("worker:cuda:0:second")
    ('cuda:1', 'cuda:0')
    """
    return ":".join(name.split(":")[1:3])


def get_model(device: object, name: str) -> DeviceModel:
    own = getattr(device, "model", None)
    return own if isinstance(own, DeviceModel) else guess(name)


def guess(name: str) -> DeviceModel:
    """Return the model for the kind of device `name`, scaled for a share of a GPU."""
    kind = get_kind(name)
    place = parse_place(kind) if kind.startswith(f"{KIND}:") else None
    if place is not None:
        return _PROVIDERS.get(place.hardware, _UNKNOWN)
    whole, fraction = get_whole(name)
    model = MODELS.get(kind, _UNKNOWN)
    return model if whole == name else model.scaled(fraction)


def guess_memory(name: str) -> str:
    if get_kind(name) == WORKER_ON_GPU:
        return get_gpu(name)
    whole, _ = get_whole(name)
    return _MEMORIES.get(whole.partition(":")[0], whole)


def get_whole(name: str) -> tuple[str, float]:
    """Return the device of which `name` is a share, and the fraction; otherwise `name` and 1.

    Examples
    --------
    >>> get_whole("cuda:0/0-40"), get_whole("worker:0")
    (('cuda:0', 0.4), ('worker:0', 1.0))
    """
    share = parse_share(name) if "/" in name else None
    return (name, 1.0) if share is None else (share.gpu, share.fraction)


def get_kernel_kind(name: str) -> str:
    kind = get_kind(name)
    return _KERNELS_OF.get(kind, kind)
