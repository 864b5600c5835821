"""The choice between two ways for the items of a stream, by the time that each takes.

Here: the thread that asks for a result runs the item's steps, one after the other. On lanes: items
are handed over, several at a time, and the thread that asks can work at earlier results meanwhile.
Which is faster depends on the machine, its load, the source and the consumer. The first way is the
one that should be faster, given the time of an item and the cost of a hand-over. Then each way is
timed over some items in a row, from one result to the next. The other way is tried again now and
then, unless it could not be faster: lanes have no more cores than there are. Callers pass the time.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import process_time_ns, thread_time_ns

from ...devices.host import count_cores
from .hand_over import LONG, get_hand_over_ns, note_hand_over

LEAST_PATIENCE, MOST_PATIENCE = 4, 1024
"""The number of items that go to lanes after one could not run here; doubled each time."""

LEAST_WINDOW = 16
"""Items over which a way is timed, at least."""

LEAST_STAY, LONG_STAY, MOST_STAY = 4, 32, 256
"""Windows before the other way is tried again; doubled each time that it was slower, up to the
long stay, and further if windows are brief."""

STAY_NS = 1_000_000_000
"""More windows than a long stay take less than this: the load of the machine may have changed."""

GAIN_HAND_OVERS = 3
"""Lanes are tried if they could save this number of hand-overs for each item: they cost two."""

OVERLAP = 0.75
"""Items are tried here again if on lanes one took longer than this part of its time on one thread:
then lanes hardly work at the same time."""

QUIETER = 0.75
"""The other way is tried again at once if an item takes less than this part of its time before:
other programs have ended, and cores may be free."""

TRIAL = 4
"""Half windows for which a way is tried."""

HOPELESS = 1.25
"""A trial ends early if items take longer than this multiple of their time the other way."""


def read_busy_ns(is_here: bool) -> int:
    """Return the processor time in ns of this thread if `is_here`, otherwise of the process."""
    return thread_time_ns() if is_here else process_time_ns()


class WayMemory:
    """The findings of a session's streams, with which the next one begins.

    Attributes
    ----------
    is_here : bool
        The faster way.
    stay : int
        The number of windows after which the other way is tried.
    windows : int
        Those that are left.
    tries : bool
        Whether the other way is being tried, by this stream or the next one.
    least_ns : float
        The least time of an item in the windows so far.
    costs, busy_ns : dict of bool to float
        The last time of an item in ns, by way, and how long it kept processors.
    """

    def __init__(self) -> None:
        self.is_here, self.tries = True, False
        self.stay, self.windows = LEAST_STAY, TRIAL // 2
        self.least_ns = inf
        self.costs: dict[bool, float] = {}
        self.busy_ns: dict[bool, float] = {}


class WayChoice:
    """Whether the next items of a stream run where they are asked for; used by one thread.

    With each result that is handed out, count `left` down; when it is 0, call `advance`.

    Parameters
    ----------
    in_flight : int
        Items that may be alive at once.
    lanes : int
        Items that could run at the same time on lanes.
    most_ns : int
        Limit of the time of steps on one thread for items to run here.
    read_item_ns : callable
        Returns how long the steps of an item take on one thread, lately; 0 if that is not known.
    memory : WayMemory, optional
        That of the session; a new one by default.
    starts_here : bool, default True
        Otherwise the first items go to lanes.
    stacked : int, default 1
        The number of items that run as one: all times are those of one of them.
    cores : int, optional
        The number of cores that lanes share; those of this process by default.

    Attributes
    ----------
    is_here : bool
        True for the thread that asks, False for lanes.
    is_refused : bool
        True for lanes because an item was refused.
    left : int
        Results until `advance` is to be called.
    """

    def __init__(
        self,
        in_flight: int,
        lanes: int,
        most_ns: int,
        read_item_ns: Callable[[], int],
        memory: WayMemory | None = None,
        *,
        starts_here: bool = True,
        stacked: int = 1,
        cores: int | None = None,
    ) -> None:
        self._stacked = stacked
        self._cores = cores or count_cores()
        self._most_ns = most_ns
        self._read_item_ns = read_item_ns
        self._lanes = lanes
        self._skipped = in_flight  # they were admitted the other way, or fill the lanes
        self._window = max(LEAST_WINDOW, 4 * in_flight)
        self._patience = LEAST_PATIENCE
        self._since_ns = self._busy_ns = 0
        self._memory = WayMemory() if memory is None else memory
        self._predict()
        self._begin()
        if not starts_here:
            self.refuse()

    def refuse(self) -> None:
        """Use lanes for some items: the last one could not run here."""
        if self.is_here and self._memory.tries:
            self._end_trial(is_better=False)
            return
        self._use(False)
        self.is_refused, self.left = True, self._patience
        self._patience = min(2 * self._patience, MOST_PATIENCE)

    def advance(self, now_ns: int, busy_ns: int) -> None:
        """Begin or end a window, or a time without one, at time `now_ns` with `busy_ns` of work."""
        if self.is_refused:
            item_ns = self._predict()
            if 0 < item_ns < self._most_ns:
                self._begin()
            else:  # lanes would be idle until the others have ended, for nothing
                self.refuse()
        elif not self._since_ns:
            was_here = self._memory.is_here
            self._predict()
            self._since_ns, self._busy_ns, self.left = now_ns, busy_ns, self._window_items
            if self._memory.is_here is not was_here:
                self._use(not was_here)
        else:
            self._patience = LEAST_PATIENCE
            items = self._window_items
            cost_ns = (now_ns - self._since_ns) / items
            self._end_window(cost_ns, (busy_ns - self._busy_ns) / items)
            if not self.is_refused and self.left <= 0:  # the way stays
                self._since_ns, self._busy_ns, self.left = now_ns, busy_ns, self._window_items

    @property
    def _window_items(self) -> int:
        return self._window // 2 if self._memory.tries else self._window

    def _predict(self) -> int:
        """Return the ns of an item here; choose the way by it before any way was timed."""
        item_ns, memory = self._read_item_ns(), self._memory
        if item_ns > 0 and not memory.costs:
            least_ns = item_ns / min(self._lanes, self._cores)  # functions that wait gain more
            memory.is_here = not self._is_worth(item_ns - least_ns)
        return item_ns

    def _begin(self) -> None:
        self._use(self._memory.is_here is not self._memory.tries)

    def _end_window(self, cost_ns: float, busy_ns: float) -> None:
        """Choose the way of the next window; in this one, results came `cost_ns` apart.

        Each kept processors for `busy_ns`. Of several windows the least cost counts: other programs
        only add to it.
        """
        memory = self._memory
        memory.busy_ns[self.is_here] = busy_ns
        is_trial = self.is_here is not memory.is_here
        memory.least_ns = min(memory.least_ns, cost_ns)
        memory.windows -= 1
        if is_trial and memory.least_ns > HOPELESS * memory.costs.get(not self.is_here, inf):
            memory.windows = 0
        if memory.windows > 0:
            if is_trial or cost_ns >= QUIETER * memory.costs.get(self.is_here, 0.0):
                return
            memory.stay = LEAST_STAY
        cost_ns, memory.least_ns = memory.least_ns, inf
        here_ns = self._read_item_ns()
        before = memory.costs.get(not self.is_here)
        if not self.is_here and before is not None and self._stacked == 1:
            note_hand_over((cost_ns - self._least_on_lanes_ns(before, here_ns)) / GAIN_HAND_OVERS)
        memory.costs[self.is_here] = cost_ns
        if is_trial:
            self._end_trial(is_better=before is None or cost_ns < before)
        elif self._may_gain(cost_ns, here_ns) if self.is_here else self._may_lose(cost_ns, here_ns):
            memory.tries = True
            memory.windows = TRIAL
            self._use(not self.is_here)
        else:
            memory.windows = LEAST_STAY

    def _end_trial(self, *, is_better: bool) -> None:
        memory = self._memory
        memory.tries, memory.least_ns = False, inf
        memory.stay = LEAST_STAY if is_better else min(2 * memory.stay, self._most_stay)
        memory.windows = memory.stay
        if is_better:
            memory.is_here = self.is_here
        else:
            self._use(memory.is_here)

    @property
    def _most_stay(self) -> int:
        window_ns = self._window * self._memory.costs.get(self._memory.is_here, 0.0)
        return min(MOST_STAY, max(LONG_STAY, int(STAY_NS / max(window_ns, 1.0))))

    def _may_gain(self, cost_ns: float, here_ns: int) -> bool:
        return self._is_worth(cost_ns - self._least_on_lanes_ns(cost_ns, here_ns))

    def _is_worth(self, gain_ns: float) -> bool:
        return gain_ns > GAIN_HAND_OVERS * get_hand_over_ns() / self._stacked

    def _may_lose(self, cost_ns: float, here_ns: int) -> bool:
        if not 0 < here_ns < self._most_ns:
            return False
        # The times of steps include waits for a core: lanes use no more than all of them.
        work_ns = min(here_ns, self._cores * cost_ns)
        n_cores = self._memory.busy_ns[False] / cost_ns  # one: others are taken, or wait for Python
        is_long = here_ns > LONG * get_hand_over_ns()  # a trial could only hold items up
        return (cost_ns > OVERLAP * work_ns and not is_long) or OVERLAP < n_cores < 1 / OVERLAP

    def _least_on_lanes_ns(self, cost_ns: float, here_ns: int) -> float:
        """Return the least ns per result on lanes: one costs `cost_ns` here, steps `here_ns`."""
        others_ns = max(0.0, cost_ns - here_ns)  # of the source, the consumer and the session
        return max(
            others_ns, here_ns / self._lanes, self._memory.busy_ns.get(True, 0.0) / self._cores
        )

    def _use(self, is_here: bool) -> None:
        self.is_here, self.is_refused = is_here, False
        self._since_ns, self.left = 0, self._skipped
