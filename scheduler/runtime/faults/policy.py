"""The policy for devices that die or hang."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ...errors import SessionError


@dataclass(frozen=True, slots=True)
class FaultPolicy:
    """What a session does when a device dies, or does not answer.

    Attributes
    ----------
    replays : int, default 5
        How many times an item may be run again because a device died while it worked at it; 0 to
        let the items of a lost device fail. Where it is more, the inputs of items under way are
        copied.
    standby : bool, default True
        Run items on the devices that remain, until the lost one is back.
    restart_s : float, default 0.1
        The pause before a device that has died is started for the second time in a row; doubled
        each time. The first time there is none.
    longest_restart_s : float, default 5.0
        The longest pause.
    patience : int, default 5
        After so many attempts to start a device that failed, items that need it fail. So they do
        after so many of its deaths, but more than `replays`, between which no item has ended well
        on it. Attempts go on.
    grace_s : float, default 1.0
        How long a worker may go on with an item that was given up, or with opening a plan that is
        no longer waited for, before it is killed.

    Examples
    --------
    >>> import plait as pl
    >>> policy = pl.FaultPolicy(replays=0, restart_s=0.5, longest_restart_s=4)
    >>> [policy.pause_s(deaths) for deaths in range(1, 6)]
    [0.5, 1.0, 2.0, 4.0, 4]
    """

    replays: int = 5
    standby: bool = True
    restart_s: float = 0.1
    longest_restart_s: float = 5.0
    patience: int = 5
    grace_s: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value >= 0:
                raise SessionError(f"{field.name} is {value!r}", fix="use 0 or more")

    def pause_s(self, starts: int) -> float:
        """Return how long to wait after so many starts in a row."""
        if starts == 0:
            return 0.0
        doubled: float = self.restart_s * 2.0 ** min(starts - 1, 64)
        return min(doubled, self.longest_restart_s)
