"""Records of what ran: kept per item while a session runs, summed up on demand."""

from .attribution import Attribution
from .profile import Profile
from .records import NodeTime, PlanTimes, Record, Span

__all__ = ["Attribution", "NodeTime", "PlanTimes", "Profile", "Record", "Span"]
