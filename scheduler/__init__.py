"""The scheduler: when what runs. Partition, memory plan, execution, streams, profile."""

from typing import TYPE_CHECKING

from ..graph.lazily import lazily

if TYPE_CHECKING:
    from ..devices.model import DeviceModel
    from .blocking import run
    from .bridges.asyncio_session import AsyncioSession
    from .bridges.blocking_session import BlockingSession
    from .carried import Carried
    from .costs import Costs
    from .errors import (
        DeadlineError,
        DoesNotFitError,
        FeedError,
        FetchError,
        PlanError,
        SessionError,
        UnsupportedOpError,
    )
    from .explain.diff import PlanDiff, diff
    from .explain.plan_file import load_plan
    from .faults import FaultPolicy
    from .make_plan import plan
    from .planning import Plan
    from .profile import Profile
    from .quantization.quantize import quantize
    from .quantization.quantized import Quantized
    from .running.item import Item
    from .session import Session
    from .simulation.models import modelled_device
    from .simulation.simulate import simulate
    from .simulation.simulation import Simulation
    from .streaming.stream import Results
    from .tuning import Tuned, tune

__all__ = [
    "AsyncioSession",
    "BlockingSession",
    "Carried",
    "Costs",
    "DeadlineError",
    "DeviceModel",
    "DoesNotFitError",
    "FaultPolicy",
    "FeedError",
    "FetchError",
    "Item",
    "Plan",
    "PlanDiff",
    "PlanError",
    "Profile",
    "Quantized",
    "Results",
    "Session",
    "SessionError",
    "Simulation",
    "Tuned",
    "UnsupportedOpError",
    "diff",
    "load_plan",
    "modelled_device",
    "plan",
    "quantize",
    "run",
    "simulate",
    "tune",
]

__getattr__ = lazily(
    __name__,
    {
        "..devices.model": "DeviceModel",
        ".blocking": "run",
        ".bridges.asyncio_session": "AsyncioSession",
        ".bridges.blocking_session": "BlockingSession",
        ".carried": "Carried",
        ".costs": "Costs",
        ".errors": "DeadlineError DoesNotFitError FeedError FetchError PlanError SessionError"
        " UnsupportedOpError",
        ".explain.diff": "PlanDiff diff",
        ".explain.plan_file": "load_plan",
        ".faults": "FaultPolicy",
        ".make_plan": "plan",
        ".planning": "Plan",
        ".profile": "Profile",
        ".quantization": "Quantized quantize",
        ".running.item": "Item",
        ".session": "Session",
        ".simulation.models": "modelled_device",
        ".simulation.simulate": "simulate",
        ".simulation.simulation": "Simulation",
        ".streaming.stream": "Results",
        ".tuning": "Tuned tune",
    },
)
