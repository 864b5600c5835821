"""The scheduler: when what runs. Partition, memory plan, execution, streams, profile."""

from typing import TYPE_CHECKING

from ..lazily import lazily

if TYPE_CHECKING:
    from ..devices.model import DeviceModel
    from .bridges.asyncio_session import AsyncioSession
    from .bridges.blocking import run
    from .bridges.blocking_session import BlockingSession
    from .bridges.micro_batches import BlockingMicroBatches, MicroBatches
    from .costs import Costs
    from .errors import (
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
    from .jobs import Job
    from .pipelines import Each, Pipeline, PipelineStep, each, pipeline, step
    from .planner.api import plan
    from .planner.simulate import simulate
    from .plans.plan import Plan
    from .profile import Profile
    from .quantization.quantize import quantize
    from .quantization.quantized import Quantized
    from .reports.diff import PlanDiff, diff
    from .reports.plan_file import load_plan
    from .runtime.faults import FaultPolicy
    from .runtime.items.item import Item
    from .runtime.session import Session
    from .runtime.streaming.as_of_join import JoinStatus
    from .runtime.streaming.join import Join, join
    from .runtime.streaming.stamped import Stamped
    from .runtime.streaming.stream import Results
    from .runtime.variables.carried import Carried
    from .simulation.models import modelled_device
    from .simulation.simulation import Simulation
    from .tuning import Tuned, tune

__all__ = [
    "AsyncioSession",
    "BlockingMicroBatches",
    "BlockingSession",
    "Carried",
    "Costs",
    "DeadlineError",
    "DeviceModel",
    "DoesNotFitError",
    "Each",
    "FaultPolicy",
    "FeedError",
    "FetchError",
    "Item",
    "Job",
    "JobError",
    "Join",
    "JoinStatus",
    "MicroBatches",
    "Pipeline",
    "PipelineStep",
    "Plan",
    "PlanDiff",
    "PlanError",
    "Profile",
    "Quantized",
    "QueueFullError",
    "Results",
    "Session",
    "SessionError",
    "Simulation",
    "SourceError",
    "Stamped",
    "Tuned",
    "UnsupportedOpError",
    "diff",
    "each",
    "join",
    "load_plan",
    "modelled_device",
    "pipeline",
    "plan",
    "quantize",
    "run",
    "simulate",
    "step",
    "tune",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "..devices.model": "DeviceModel",
        ".bridges.blocking": "run",
        ".bridges.asyncio_session": "AsyncioSession",
        ".bridges.blocking_session": "BlockingSession",
        ".bridges.micro_batches": "BlockingMicroBatches MicroBatches",
        ".runtime.variables.carried": "Carried",
        ".costs": "Costs",
        ".errors": "DeadlineError DoesNotFitError FeedError FetchError JobError PlanError"
        " QueueFullError SessionError SourceError UnsupportedOpError",
        ".reports.diff": "PlanDiff diff",
        ".reports.plan_file": "load_plan",
        ".runtime.faults": "FaultPolicy",
        ".jobs": "Job",
        ".pipelines": "Each Pipeline PipelineStep each pipeline step",
        ".planner.api": "plan",
        ".plans.plan": "Plan",
        ".profile": "Profile",
        ".quantization": "Quantized quantize",
        ".runtime.items.item": "Item",
        ".runtime.session": "Session",
        ".simulation.models": "modelled_device",
        ".planner.simulate": "simulate",
        ".simulation.simulation": "Simulation",
        ".runtime.streaming.as_of_join": "JoinStatus",
        ".runtime.streaming.join": "Join join",
        ".runtime.streaming.stamped": "Stamped",
        ".runtime.streaming.stream": "Results",
        ".tuning": "Tuned tune",
    },
)
