"""Errors for items on lost replicas."""

from __future__ import annotations

from ....devices.errors import DeviceLostError
from ....devices.worker.remote_errors import rebuild
from .serving_sessions import Answer


def lost_item_error(name: str, loss: DeviceLostError, replays: int) -> DeviceLostError:
    """Return what an item fails with that is not run again, or not once more."""
    fix = "it may have taken effect, so it is not run again: feed it again if that does no harm"
    if replays:
        fix = f"it ran {replays + 1} times, and no replica survived; see what ends them"
    return DeviceLostError(f"{name!r} was lost with the item: {loss.what}", at=loss.at, fix=fix)


def lost_variables_error(name: str, loss: DeviceLostError) -> DeviceLostError:
    """Return what all items fail with from now on."""
    return DeviceLostError(
        f"{name!r} was lost, and what the variables held there: {loss.what}",
        at=loss.at,
        fix="open another pool, of a plan with the variables of a checkpoint",
    )


def lost_device(answer: Answer, name: str) -> DeviceLostError | None:
    """Return what a host says that has lost a device for good: another one may do better."""
    for outcome in answer.outcomes:
        error = outcome[2]
        if error is not None and error[0][0][0] == DeviceLostError.__name__:
            rebuilt = rebuild(error, f"replica {name!r}")
            return rebuilt if isinstance(rebuilt, DeviceLostError) else None
    return None
