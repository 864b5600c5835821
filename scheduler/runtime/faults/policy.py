"""The policy for devices that die or hang."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ...errors import SessionError


@dataclass(frozen=True, slots=True)
class FaultPolicy:
    """How a session handles devices that die or do not answer.

    Attributes
    ----------
    replays : int, default 5
        How many times an item may run again because its device died; 0 makes the items of a lost
        device fail. If it is above 0, the inputs of items in flight are copied.
    standby : bool, default True
        Run items on the remaining devices until the lost device is back.
    restart_s : float, default 0.1
        The pause before a dead device is restarted for the second time in a row; doubled each time.
        The first restart is immediate.
    longest_restart_s : float, default 5.0
        The longest pause.
    patience : int, default 5
        After this many failed attempts to start a device, items that need it fail. They also fail
        after this many deaths of the device, if above `replays`, without a successful item in
        between. Attempts continue, and a stream takes no further items before the next one.
    patience_s : float, default 10.0
        Nor do they fail earlier than this many seconds after the first of these deaths: on a busy
        machine, each attempt may take long.
    grace_s : float, default 1.0
        How long a worker may continue with a cancelled item, or with opening an unneeded plan,
        before it is killed.

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
    patience_s: float = 10.0
    grace_s: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value >= 0:
                raise SessionError(f"{field.name} is {value!r}", fix="use 0 or more")

    def pause_s(self, starts: int) -> float:
        """Return the pause in seconds after `starts` starts in a row."""
        if starts == 0:
            return 0.0
        doubled: float = self.restart_s * 2.0 ** min(starts - 1, 64)
        return min(doubled, self.longest_restart_s)
