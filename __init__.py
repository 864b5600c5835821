"""plait: CPU and GPU work braided into one asynchronous dataflow."""

from typing import TYPE_CHECKING

from .lazily import lazily
from .version import VERSION

if TYPE_CHECKING:
    from . import devices, formats, operators, passes
    from .devices import device
    from .devices.errors import (
        DeviceError,
        DeviceLostError,
        DeviceMemoryError,
        DeviceUnavailableError,
        KernelError,
        RemoteError,
    )
    from .devices.model import DeviceModel
    from .dialects import cvm
    from .graph import learning
    from .graph.building.builder import GraphBuilder
    from .graph.building.named_tensor import Tensor
    from .graph.core.check import check
    from .graph.core.ir import Graph, Node, topological_layers
    from .graph.core.printing import to_dot
    from .graph.formats.checkpoints import Checkpoint, Checkpoints
    from .graph.formats.freezing import freeze
    from .graph.formats.graphs import load, save
    from .graph.formats.registry import Format, register_format
    from .graph.formats.weights import load_weights, save_weights, weights_of, with_weights
    from .graph.functions.python import operator
    from .graph.gradients.build import gradients
    from .graph.values.errors import (
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
    from .graph.values.registry import unregister
    from .graph.values.tensor import TensorSpec
    from .scheduler import jobs, packing, ray, sources
    from .scheduler.bridges.asyncio_session import AsyncioSession
    from .scheduler.bridges.blocking import run
    from .scheduler.bridges.blocking_session import BlockingSession
    from .scheduler.bridges.micro_batches import BlockingMicroBatches, MicroBatches
    from .scheduler.costs import Costs
    from .scheduler.errors import (
        DeadlineError,
        DoesNotFitError,
        FeedError,
        FetchError,
        JobError,
        PlanError,
        QueueFullError,
        SessionError,
        SourceError,
        UnsupportedOpError,
    )
    from .scheduler.jobs import Job
    from .scheduler.pipelines import Each, Pipeline, PipelineStep, each, pipeline, step
    from .scheduler.planner.api import plan
    from .scheduler.planner.simulate import simulate
    from .scheduler.plans.plan import Plan
    from .scheduler.profile import Profile
    from .scheduler.quantization import Quantized, quantize
    from .scheduler.reports.diff import PlanDiff, diff
    from .scheduler.reports.plan_file import load_plan
    from .scheduler.runtime import events
    from .scheduler.runtime.faults import FaultPolicy
    from .scheduler.runtime.items.item import Item
    from .scheduler.runtime.session import Session
    from .scheduler.runtime.streaming.as_of_join import JoinStatus
    from .scheduler.runtime.streaming.join import Join, join
    from .scheduler.runtime.streaming.stamped import Stamped
    from .scheduler.runtime.streaming.stream import Results
    from .scheduler.runtime.variables.carried import Carried
    from .scheduler.simulation.models import modelled_device
    from .scheduler.simulation.simulation import Simulation
    from .scheduler.tuning import Tuned, tune

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
    "Each",
    "FaultPolicy",
    "FeedError",
    "FetchError",
    "Format",
    "Graph",
    "GraphBuilder",
    "GraphError",
    "InternalError",
    "Item",
    "Job",
    "JobError",
    "Join",
    "JoinStatus",
    "KernelError",
    "LogicError",
    "MicroBatches",
    "Node",
    "OperatorError",
    "ParseError",
    "Pipeline",
    "PipelineStep",
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
    "each",
    "events",
    "formats",
    "freeze",
    "gradients",
    "jobs",
    "join",
    "learning",
    "load",
    "load_plan",
    "load_weights",
    "modelled_device",
    "operator",
    "operators",
    "packing",
    "passes",
    "pipeline",
    "plan",
    "quantize",
    "ray",
    "register_format",
    "run",
    "save",
    "save_weights",
    "simulate",
    "sources",
    "step",
    "to_dot",
    "topological_layers",
    "tune",
    "unregister",
    "weights_of",
    "with_weights",
]


__getattr__, __dir__ = lazily(  # numpy and trio too come with the first name that needs them
    __name__,
    {
        ".devices": ". device",
        ".devices.errors": "DeviceError DeviceLostError DeviceMemoryError DeviceUnavailableError"
        " KernelError RemoteError",
        ".devices.model": "DeviceModel",
        ".dialects.cvm": ".",
        ".formats": ".",
        ".graph.building.builder": "GraphBuilder",
        ".graph.core.check": "check",
        ".graph.values.errors": "GraphError InternalError LogicError OperatorError ParseError"
        " PlaitError RuntimeFailureError ShapeError UnknownOperatorError WireError",
        ".graph.formats.checkpoints": "Checkpoint Checkpoints",
        ".graph.formats.freezing": "freeze",
        ".graph.formats.graphs": "load save",
        ".graph.formats.registry": "Format register_format",
        ".graph.formats.weights": "load_weights save_weights weights_of with_weights",
        ".graph.gradients.build": "gradients",
        ".graph.core.ir": "Graph Node topological_layers",
        ".graph.learning": ".",
        ".graph.building.named_tensor": "Tensor",
        ".graph.core.printing": "to_dot",
        ".graph.functions.python": "operator",
        ".graph.values.registry": "unregister",
        ".graph.values.tensor": "TensorSpec",
        ".operators": ".",
        ".passes": ".",
        ".scheduler.bridges.asyncio_session": "AsyncioSession",
        ".scheduler.bridges.blocking": "run",
        ".scheduler.bridges.blocking_session": "BlockingSession",
        ".scheduler.bridges.micro_batches": "BlockingMicroBatches MicroBatches",
        ".scheduler.costs": "Costs",
        ".scheduler.errors": "DeadlineError DoesNotFitError FeedError FetchError JobError PlanError"
        " QueueFullError SessionError SourceError UnsupportedOpError",
        ".scheduler.jobs": ". Job",
        ".scheduler.packing": ".",
        ".scheduler.pipelines": "Each Pipeline PipelineStep each pipeline step",
        ".scheduler.planner.api": "plan",
        ".scheduler.planner.simulate": "simulate",
        ".scheduler.plans.plan": "Plan",
        ".scheduler.profile": "Profile",
        ".scheduler.quantization": "Quantized quantize",
        ".scheduler.ray": ".",
        ".scheduler.reports.diff": "PlanDiff diff",
        ".scheduler.reports.plan_file": "load_plan",
        ".scheduler.runtime.events": ".",
        ".scheduler.runtime.faults": "FaultPolicy",
        ".scheduler.runtime.items.item": "Item",
        ".scheduler.runtime.session": "Session",
        ".scheduler.runtime.streaming.as_of_join": "JoinStatus",
        ".scheduler.runtime.streaming.join": "Join join",
        ".scheduler.runtime.streaming.stamped": "Stamped",
        ".scheduler.runtime.streaming.stream": "Results",
        ".scheduler.runtime.variables.carried": "Carried",
        ".scheduler.simulation.models": "modelled_device",
        ".scheduler.simulation.simulation": "Simulation",
        ".scheduler.sources": ".",
        ".scheduler.tuning": "Tuned tune",
    },
)
