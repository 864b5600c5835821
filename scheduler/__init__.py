"""The scheduler: when what runs. Partition, memory plan, execution, streams, profile."""

from .blocking import run
from .errors import DoesNotFitError, FeedError, PlanError, SessionError, UnsupportedOpError
from .item import Item
from .planning import Plan, plan
from .profile import Profile
from .session import Session
from .stream import Results

__all__ = [
    "DoesNotFitError",
    "FeedError",
    "Item",
    "Plan",
    "PlanError",
    "Profile",
    "Results",
    "Session",
    "SessionError",
    "UnsupportedOpError",
    "plan",
    "run",
]
