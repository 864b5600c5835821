"""The errors that planning and running can cause.

PlaitError
├── PlanError               it cannot be placed
│   ├── UnsupportedOpError  no device, or not the pinned one, supports a node
│   └── DoesNotFitError     a device has too little memory for the plan
├── SourceError             what items come from cannot be read or joined
└── SessionError            a session was used wrongly, or not in time
    ├── FeedError           the arrays fed do not fit the graph's inputs
    ├── FetchError          what is fetched is not in the graph
    ├── DeadlineError       an item was not done in time
    └── QueueFullError      as many items wait for a batch as may
"""

from __future__ import annotations

from ..graph.errors import PlaitError


class PlanError(PlaitError):
    """The graph cannot be planned for these devices."""


class UnsupportedOpError(PlanError):
    """Some nodes run on none of the devices they may be given to."""


class DoesNotFitError(PlanError):
    """The plan needs more memory than a device has."""


class SourceError(PlaitError):
    """What items come from cannot be read, or not be joined."""


class SessionError(PlaitError):
    """A session was used wrongly: it is closed, or not opened yet."""


class FeedError(SessionError):
    """What was fed does not fit the graph's inputs."""


class FetchError(SessionError):
    """What is to be fetched is no tensor of the graph."""


class DeadlineError(SessionError):
    """An item was not done within its deadline."""


class QueueFullError(SessionError):
    """As many items wait for a batch as may."""


def forked_session_error() -> SessionError:
    """Return what a forked child sees that uses a session of its parent."""
    return SessionError(
        "the session belongs to the process that this one was forked from",
        fix="open sessions after the fork, or use the start method 'spawn'",
    )
