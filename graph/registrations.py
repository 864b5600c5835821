"""A count of what was registered, or no longer is: plans made before may not fit."""

from __future__ import annotations

_count = 0


def note_registration() -> None:
    """Count one more."""
    global _count
    _count += 1


def registrations() -> int:
    """Return how many there were in this process."""
    return _count
