"""plait: CPU and GPU work braided into one asynchronous dataflow."""

from typing import TYPE_CHECKING

from . import devices
from .devices import device
from .devices.errors import (
    DeviceError,
    DeviceLostError,
    DeviceMemoryError,
    DeviceUnavailableError,
    KernelError,
    RemoteError,
)
from .graph import (
    Graph,
    GraphBuilder,
    Node,
    Tensor,
    TensorSpec,
    check,
    operator,
    topological_layers,
)
from .graph.errors import (
    GraphError,
    InternalError,
    LogicError,
    OperatorError,
    ParseError,
    PlaitError,
    RuntimeFailureError,
    ShapeError,
    UnknownOperatorError,
    WireError,
)
from .graph.lazily import lazily
from .version import VERSION

if TYPE_CHECKING:
    from .dialects import cvm
    from .graph import learning
    from .graph.formats import (
        Checkpoint,
        Checkpoints,
        Format,
        freeze,
        load,
        load_weights,
        register_format,
        save,
        save_weights,
        weights_of,
        with_weights,
    )
    from .graph.gradients import gradients
    from .graph.printing import to_dot
    from .scheduler import (
        AsyncioSession,
        BlockingMicroBatches,
        BlockingSession,
        Carried,
        Costs,
        DeadlineError,
        DeviceModel,
        DoesNotFitError,
        FaultPolicy,
        FeedError,
        FetchError,
        Item,
        Join,
        JoinStatus,
        MicroBatches,
        Plan,
        PlanDiff,
        PlanError,
        Profile,
        Quantized,
        QueueFullError,
        Results,
        Session,
        SessionError,
        Simulation,
        SourceError,
        Stamped,
        Tuned,
        UnsupportedOpError,
        diff,
        join,
        load_plan,
        modelled_device,
        plan,
        quantize,
        ray,
        run,
        simulate,
        sources,
        tune,
    )

__version__ = VERSION

__all__ = [
    "AsyncioSession",
    "BlockingMicroBatches",
    "BlockingSession",
    "Carried",
    "Checkpoint",
    "Checkpoints",
    "Costs",
    "DeadlineError",
    "DeviceError",
    "DeviceLostError",
    "DeviceMemoryError",
    "DeviceModel",
    "DeviceUnavailableError",
    "DoesNotFitError",
    "FaultPolicy",
    "FeedError",
    "FetchError",
    "Format",
    "Graph",
    "GraphBuilder",
    "GraphError",
    "InternalError",
    "Item",
    "Join",
    "JoinStatus",
    "KernelError",
    "LogicError",
    "MicroBatches",
    "Node",
    "OperatorError",
    "ParseError",
    "PlaitError",
    "Plan",
    "PlanDiff",
    "PlanError",
    "Profile",
    "Quantized",
    "QueueFullError",
    "RemoteError",
    "Results",
    "RuntimeFailureError",
    "Session",
    "SessionError",
    "ShapeError",
    "Simulation",
    "SourceError",
    "Stamped",
    "Tensor",
    "TensorSpec",
    "Tuned",
    "UnknownOperatorError",
    "UnsupportedOpError",
    "WireError",
    "check",
    "cvm",
    "device",
    "devices",
    "diff",
    "freeze",
    "gradients",
    "join",
    "learning",
    "load",
    "load_plan",
    "load_weights",
    "modelled_device",
    "operator",
    "plan",
    "quantize",
    "ray",
    "register_format",
    "run",
    "save",
    "save_weights",
    "simulate",
    "sources",
    "to_dot",
    "topological_layers",
    "tune",
    "weights_of",
    "with_weights",
]


def _on_ray(name: str) -> devices.Device:
    from .scheduler.ray.cluster import find

    return find(name)


devices.register("ray", _on_ray, instances=tuple)


__getattr__, __dir__ = lazily(  # what takes long: the scheduler, with it trio, and the formats
    __name__,
    {
        ".dialects.cvm": "",
        ".graph.formats": "Checkpoint Checkpoints Format freeze load load_weights register_format"
        " save save_weights weights_of with_weights",
        ".graph.gradients": "gradients",
        ".graph.learning": "",
        ".graph.printing": "to_dot",
        ".scheduler": "AsyncioSession BlockingMicroBatches BlockingSession Carried Costs"
        " DeadlineError DeviceModel DoesNotFitError FaultPolicy FeedError FetchError Item"
        " Join JoinStatus SourceError Stamped join"
        " MicroBatches Plan PlanDiff PlanError Profile Quantized QueueFullError Results Session"
        " SessionError Simulation Tuned UnsupportedOpError diff load_plan modelled_device plan"
        " quantize run simulate tune",
        ".scheduler.ray": "",
        ".scheduler.sources": "",
    },
)
