"""Records of items, kept while a session runs and summarized on demand."""

from .attribution import Attribution
from .profile import Profile
from .records import NodeTime, PlanTimes, Record, Span

__all__ = ["Attribution", "NodeTime", "PlanTimes", "Profile", "Record", "Span"]
