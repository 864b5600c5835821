"""Facts about the kinds of devices that plait comes with, known from a name alone.

They are asked of names, also of devices that are not on this machine, or no longer: tables rather
than facts of each device. A device that is there knows better, by its own `model` and
`capabilities`; so do those of packages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .cuda.names import share_of
from .kernel_factors import FACTORS
from .memory import HOST, SHARED
from .model import DeviceModel
from .ort.providers import KIND, kind_of, place_of

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
"""A graphics card of the smaller sort: the devices themselves say more, once they are found."""

WORKER_ON_GPU = "worker:cuda"
"""The kind of workers whose arrays lie in a GPU's memory."""

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
    "formal": replace(_HOST, flops_per_s=1e6, bytes_per_s=4e6, operators={}, launch_s=20e-6),
    "cuda": _CUDA,
    WORKER_ON_GPU: replace(_CUDA, submit_s=130e-6),  # on an H200
    "opencl": OPENCL,
    "sim": DeviceModel(memory_bytes=4 << 30, is_guess=True),
}
"""Figures of processors are those of one core of a server of 2023 or so, and by what factor each
operator's kernels are slower than that; of others, orders of magnitude. Measured ones replace them:
`plait devices --measure`.
"""

_PROVIDERS: Mapping[str, DeviceModel] = {
    "cpu": replace(MODELS["ort"], submit_s=60e-6),
    **dict.fromkeys(
        ("gpu", "npu"), replace(OPENCL, submit_s=200e-6, copy_queues=0, layout_bytes_per_s=5e9)
    ),
}
"""Of providers of ONNX Runtime, by their hardware: inputs and outputs are copied in each run."""

_MEMORIES = {"cpu": HOST, "worker": SHARED, "compiled": HOST, "ort": HOST, "formal": HOST}
"""Where their arenas lie; a device of any other kind has a memory of its own, called like it."""

_KERNELS_OF = {"worker": "cpu"}
"""The kind whose kernels a kind runs that has none of its own: a worker is a cpu elsewhere."""


def device_kind(name: str) -> str:
    """Return the kind of a device: the part of its name before the colon.

    Of a device on a provider of ONNX Runtime the provider is part of it, and hardware that is not
    the usual one: devices that have these in common have kernels in common. Workers on GPUs are not
    of the kind of those that compute on processors.

    Examples
    --------
    >>> device_kind("worker:0"), device_kind("ort:second"), device_kind("ort:openvino:0")
    ('worker', 'ort', 'ort:openvino')
    >>> device_kind("worker:cuda:0")
    'worker:cuda'
    """
    kind, colon, instance = name.partition(":")
    if colon and kind == KIND:
        return kind_of(name) or kind
    longer = f"{kind}:{instance.partition(':')[0]}"
    return longer if longer in MODELS else kind


def gpu_of(name: str) -> str:
    """Return the GPU of a worker on one.

    Examples
    --------
    >>> gpu_of("worker:cuda:1"), gpu_of("worker:cuda:0:second")
    ('cuda:1', 'cuda:0')
    """
    return ":".join(name.split(":")[1:3])


def model_of(device: object, name: str) -> DeviceModel:
    """Return a device's own model if it has one, else that of its kind."""
    own = getattr(device, "model", None)
    return own if isinstance(own, DeviceModel) else guess(name)


def guess(name: str) -> DeviceModel:
    """Return the model of a device's kind; of a share of a GPU its part of that."""
    kind = device_kind(name)
    place = place_of(kind) if kind.startswith(f"{KIND}:") else None
    if place is not None:
        return _PROVIDERS.get(place.hardware, _UNKNOWN)
    whole, fraction = whole_of(name)
    model = MODELS.get(kind, _UNKNOWN)
    return model if whole == name else model.scaled(fraction)


def usual_memory(name: str) -> str:
    """Return where arenas of a device's kind lie."""
    if device_kind(name) == WORKER_ON_GPU:
        return gpu_of(name)
    whole, _ = whole_of(name)
    return _MEMORIES.get(whole.partition(":")[0], whole)


def whole_of(name: str) -> tuple[str, float]:
    """Return the device of which one is a share, and how much of it; for others, itself and 1.

    Examples
    --------
    >>> whole_of("cuda:0/0-40"), whole_of("worker:0")
    (('cuda:0', 0.4), ('worker:0', 1.0))
    """
    share = share_of(name) if "/" in name else None
    return (name, 1.0) if share is None else (share.gpu, share.fraction)


def kernels_of(name: str) -> str:
    """Return the kind whose kernels a device runs."""
    kind = device_kind(name)
    return _KERNELS_OF.get(kind, kind)
