"""The error of a wrong command line."""

from __future__ import annotations

from ..graph.values.errors import PlaitError


class CommandError(PlaitError):
    """The command line is wrong."""
