"""What ran when: recorded per item while a session runs, summed up and explained on demand."""

from .attribution import Attribution
from .profile import Profile
from .records import NodeTime, Part, Record, Span

__all__ = ["Attribution", "NodeTime", "Part", "Profile", "Record", "Span"]
