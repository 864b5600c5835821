"""An item: its inputs, its way through the plan, and its results; and the items in flight."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Literal

import trio

from ....graph.values.errors import PlaitError, suggest_names
from ....graph.values.tensor import Array
from ...costs.host import ALONE_BYTES, INLINE_BYTES
from ...errors import SessionError
from ...profile.timestamps import Timestamps
from ..opened.results import Outcome, Results, Take, copy_results

if TYPE_CHECKING:
    from ..opened.executor import Execution
    from ..recorder import Trace
    from .pipeline import KeyState

OnError = Literal["yield", "raise"]


class ItemRun:
    """An item on its way through a session; used on the trio thread only.

    Parameters
    ----------
    is_part : bool, default False
        True when it is only one of the plans that an item goes through.
    owns_inputs : bool, default False
        True if its inputs are not written until it is done.
    take : callable, default `copy_results`
        Takes the results from the slot at the end; called on any thread.
    holds : bool, default False
        Keep the slot, which contains the results, until `let_go`.
    on_done : callable, optional
        Called with it once `done` is set.
    marks : Timestamps, optional
        Known statistics of it.

    Attributes
    ----------
    done : trio.Event
        Set when `results` or `error` stand, and the item's slot is free again unless it is held.
    index : int
        Its place in the source.
    priority : int
        Its steps go before those of items of lower priorities.
    age : int or None
        Its place among the items of a session, once it was started; the same for all its parts, and
        when it is started again.
    part : ItemRun or None
        Where the item goes through several plans: the one that is under way.
    traces : sequence of Trace
        Its executions, the latest last.
    marks : Timestamps
        When it was where.
    variant : int
        Which replicas it runs on, once it was admitted.
    is_over : bool
        True when it has ended and holds no slot.
    cancelled : bool
        True when no further one may be started.
    cause : BaseException or None
        Why it was given up; it fails with that, however far it gets.
    outcome : Outcome or None
        Its outcome, if the thread of its last step has taken that.
    departed : Mapping of str to Array
        Results on devices: where they will be.
    batch : ItemRun or None
        The one of the batch that contains it.
    on_cancel : callable or None
        Called once when it is cancelled.
    state : KeyState or None
        Of its key, once it was admitted.
    """

    __slots__ = (
        "__weakref__",
        "_release_slot",
        "age",
        "batch",
        "cancelled",
        "cause",
        "departed",
        "done",
        "error",
        "execution",
        "holds",
        "index",
        "is_over",
        "is_part",
        "marks",
        "members",
        "on_cancel",
        "on_done",
        "outcome",
        "owns_inputs",
        "part",
        "priority",
        "results",
        "state",
        "take",
        "traces",
        "variant",
    )

    def __init__(
        self,
        *,
        is_part: bool = False,
        owns_inputs: bool = False,
        take: Take = copy_results,
        holds: bool = False,
        on_done: Callable[[ItemRun], object] | None = None,
        marks: Timestamps | None = None,
    ) -> None:
        self.is_part = is_part
        self.owns_inputs = owns_inputs
        self.take = take
        self.holds = holds
        self.on_done = on_done
        self.index = 0
        self.priority = 0
        self.age: int | None = None
        self.marks = Timestamps() if marks is None else marks
        self.done = trio.Event()
        self.results: Results = {}
        self.error: BaseException | None = None
        self.outcome: Outcome | None = None
        self.departed: Results = {}
        self.execution: Execution | None = None
        self.part: ItemRun | None = None
        self.traces: Sequence[Trace] = ()
        self.variant = 0
        self.is_over = self.cancelled = False
        self.cause: BaseException | None = None
        self.on_cancel: Callable[[], object] | None = None
        self.batch: ItemRun | None = None
        self.members: Sequence[ItemRun] = ()
        self.state: KeyState | None = None
        self._release_slot: Callable[[], object] | None = None

    def land(
        self, results: Results, error: BaseException | None, release_slot: Callable[[], object]
    ) -> None:
        """Record `results` or `error`, and call `release_slot`, but later if the slot is held."""
        if self.done.is_set():  # it was given up without waiting for it
            release_slot()
            return
        # A failed item has no readable results in its slot.
        if self.holds and error is None and self.cause is None:
            self._release_slot = release_slot
        else:
            release_slot()
        self.finish(results, error)

    @trio.lowlevel.enable_ki_protection
    def finish(self, results: Results | None = None, error: BaseException | None = None) -> None:
        """End the item with `results` or `error`, unless it has ended already."""
        if self.done.is_set():
            return
        # The reason of its cancellation comes first: other errors may follow from it.
        self.error = self.cause or error
        self.results = {} if self.error is not None else results or {}
        self.outcome, self.departed = None, {}
        self.execution = self.on_cancel = None  # which may know the item, and thereby its results
        self.is_over = self._release_slot is None
        # Before waiters are woken, so that they find it done.
        self.done.set()
        if self.on_done is not None:
            self.on_done(self)

    @trio.lowlevel.enable_ki_protection  # or Ctrl-C might strike between two counts
    def cancel(self) -> None:
        """Skip waiting steps; `done` is set when the running ones have ended."""
        self.cancelled = True
        if self.part is not None:
            self.part.cancel()
        if self.execution is not None:
            self.execution.cancel()
        # Taken away first: it is called once, though it may lead here again.
        on_cancel, self.on_cancel = self.on_cancel, None
        if on_cancel is not None:
            on_cancel()

    @property
    def is_deserted(self) -> bool:
        """True if this is a batch, and none of its items is waited for any more."""
        return bool(self.members) and all(member.done.is_set() for member in self.members)

    def was_given_up(self) -> bool:
        """Return whether the item fails however far it gets."""
        return self.cause is not None

    def let_go(self) -> None:
        """Free the slot if it is held: its results must not be read any more.

        The error is dropped: its frames refer to the item and its memory.
        """
        self.error = None
        release_slot, self._release_slot = self._release_slot, None
        if release_slot is not None:
            release_slot()
            self.is_over = True


class ItemsUnderWay(set[ItemRun]):
    """Items that have been started and have not landed; changed on the trio thread only.

    `copying` counts those being copied on threads, most of them before they are started.
    """

    copying = 0

    def most_inline(self, item_run: ItemRun) -> int:
        """Return how many bytes of `item_run` may be copied on the loop's thread; thread-safe.

        Items that wait for a slot are not counted: without items in flight, one will be free soon.
        """
        others = self.copying or len(self) > (item_run in self)
        return INLINE_BYTES if others else ALONE_BYTES


@dataclass(slots=True, eq=False)
class Item:
    """One result of a stream.

    It is released when the next one is requested, or earlier by `release`, or at the end of a
    ``with`` block. Then there is room for one more item.

    Attributes
    ----------
    index : int
        Its position in the source, from 0.
    error : BaseException or None
        Why it failed; the stream continues.
    stamp : float or None
        The time or key from its source, in a `Stamped`.

    Examples
    --------
    >>> import numpy as np
    >>> import plait as pl
    >>> b = pl.GraphBuilder("double")
    >>> b.output("y", b.op("Mul", b.input("x", "float32", (1,)), 2.0))
    >>> feeds = [{"x": np.array([n], "float32")} for n in range(3)]
    >>> with pl.BlockingSession(pl.plan(b.build())) as session:
    ...     for item in session.stream(feeds):
    ...         print(item.index, item["y"], item.error)
    0 [0.] None
    1 [2.] None
    2 [4.] None
    """

    index: int
    _outputs: Results | None
    error: BaseException | None
    _on_release: Callable[[Item], object] | None = None
    _arrange: Callable[[Results], Any] = dict
    stamp: float | None = None
    _marks: Sequence[Timestamps] = ()

    def __getitem__(self, name: str) -> Array:
        """Return the output `name`; raise the item's error if it failed."""
        outputs = self.outputs
        if name not in outputs:
            told = suggest_names(name, outputs, f"there are: {', '.join(outputs)}")
            raise KeyError(f"the item has no result {name!r}; {told}")
        return outputs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.outputs)

    @property
    def outputs(self) -> Results:
        """All outputs by name; raises the item's error if it failed."""
        if self.error is not None:
            raise self.error
        if self._outputs is None:
            raise SessionError(
                f"item {self.index} was released, and its outputs lay in memory of the session",
                fix="copy what you keep, or stream with copy=True",
            )
        return self._outputs

    @property
    def fetched(self) -> Any:
        """The fetched tensors, in the structure of `fetches`; by default all outputs by name.

        Raises the item's error if it failed.
        """
        return self._arrange(self.outputs)

    def release(self) -> None:
        """Release the item; releasing twice is allowed."""
        on_release, self._on_release = self._on_release, None
        if on_release is not None:
            on_release(self)

    def release_marked(self) -> bool:
        """Release an item and leave its permit to the next; False if it was released before."""
        if self._on_release is None:
            return False
        self._on_release = None
        for marks in self._marks:
            marks.released_ns = perf_counter_ns()
        return True

    def pass_on(
        self, index: int, on_release: Callable[[Item], object], now_ns: Callable[[], int]
    ) -> Item:
        """Return an item of these outputs with `index` and `on_release`, taken at `now_ns()`."""
        for marks in self._marks:
            marks.taken_ns = now_ns()
        release = partial(mark_release, self._marks, now_ns, on_release)
        return Item(index, self._outputs, self.error, release, self._arrange, self.stamp)

    def checked(self, on_error: OnError) -> Item:
        """Return the item itself; raise its error, if it has one, if `on_error` is "raise"."""
        if isinstance(self.error, PlaitError):
            self.error.item = self.index
        if self.error is not None and on_error == "raise":
            raise self.error
        return self

    def forget(self) -> None:
        """Drop the outputs, so that their memory can be reused."""
        # The arrays may live on with their users; the item shows them no more.
        self._outputs = None

    def __enter__(self) -> Item:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        if self.error is not None:
            state = f"error={self.error!r}"
        else:
            state = "released" if self._outputs is None else f"outputs={[*self._outputs]}"
        return f"Item({self.index}, {state})"


def mark_release(
    every: Sequence[Timestamps],
    now_ns: Callable[[], int],
    on_release: Callable[[Item], object] | None,
    item: Item,
) -> None:
    """Note `now_ns()` as time of release in `every` record, and call `on_release` with `item`.

    This does not keep its stream from being collected.
    """
    for marks in every:
        marks.released_ns = now_ns()
    if on_release is not None:
        on_release(item)
