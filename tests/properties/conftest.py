"""Sessions of these tests leave nothing of an item when they close."""

from at_rest import _sessions_end_at_rest

__all__ = ["_sessions_end_at_rest"]
