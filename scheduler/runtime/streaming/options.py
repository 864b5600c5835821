"""Options of a stream, checked before it begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

from ....devices.host import may_run_anywhere
from ....graph.core.state import find_assigned, has_assignments
from ....graph.operators.item_order import is_ordered
from ...errors import SessionError, make_keyword_error
from ...planner.request import MOST_IN_FLIGHT
from ...plans.fetches import Fetched, Fetches
from ...plans.plan import Plan
from ..items.deadlines import check_deadline
from ..items.item import OnError
from ..opened.fetch_plan_cache import ALL
from ..opened.results import Results
from ..variables.keyed_states import MAX_KEYS, Evict
from .item_keys import Key, KeyReader

Drop = Literal["oldest", "newest"]
Keep = int | Literal["latest"]


class StreamArguments(TypedDict, total=False):
    """The arguments of `Session.stream`, but for the source."""

    max_in_flight: int | None
    ordered: bool
    batch: int | None
    max_delay_s: float | None
    deadline_s: float | None
    on_error: OnError
    copy: bool
    fetches: Fetches | None
    keep: Keep | None
    drop: Drop | None
    pad: str | None
    key: Key | None
    max_keys: int | None
    evict: Evict | None


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The arguments of `Session.stream`, with its defaults.

    Raises SessionError if an option is invalid, or options do not fit together.
    """

    max_in_flight: int
    ordered: bool = True
    batch: int | None = None
    max_delay_s: float | None = None
    deadline_s: float | None = None
    on_error: OnError = "yield"
    copy: bool = True
    fetches: Fetches | None = None
    keep: Keep | None = None
    drop: Drop | None = None
    pad: str | None = None
    key: Key | None = None
    max_keys: int = MAX_KEYS
    evict: Evict = "error"
    fetched: Fetched | None = None
    """The tensors that `fetches` name; the other attributes are the arguments."""
    read_key: KeyReader | None = None
    """Finds the keys of items."""
    only_input: str | None = None
    """The only input of the graph; None if it has several. An item may be its array."""

    def __post_init__(self) -> None:
        for name in ("batch", "max_in_flight", "max_keys"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise SessionError(f"{name} is {value!r}", fix="use a whole number, 1 or more")
        if self.slots > MOST_IN_FLIGHT:
            raise SessionError(
                f"max_in_flight is {self.max_in_flight:,}",
                fix=f"use {MOST_IN_FLIGHT * (self.batch or 1):,} at most",
            )
        if self.batch is not None and self.batch > self.max_in_flight:
            raise SessionError(
                f"a batch of {self.batch} items never fills up with {self.max_in_flight} in flight",
                fix=f"max_in_flight={2 * self.batch}, so that one is filled while one runs",
            )
        if self.max_delay_s is not None and (self.batch is None or self.max_delay_s < 0):
            raise SessionError(
                f"max_delay_s is {self.max_delay_s}",
                fix="give the seconds that a batch may wait to fill up, and batch=",
            )
        if self.pad is not None and self.batch is None:
            raise SessionError(f"pad is {self.pad!r} without batch=", fix="give batch=, too")
        check_deadline(self.deadline_s)
        self._check_keep()
        self._check_key()
        if self.on_error not in ("yield", "raise"):
            raise SessionError(f"on_error is {self.on_error!r}", fix="use 'yield' or 'raise'")

    def _check_key(self) -> None:
        if self.key is None and (self.max_keys != MAX_KEYS or self.evict != "error"):
            raise SessionError("max_keys or evict is given without key=", fix="give key=, too")
        if not (self.key is None or isinstance(self.key, str) or callable(self.key)):
            raise SessionError(
                f"key is {self.key!r}", fix="use the name of an input, or a function of the item"
            )
        if self.key is not None and self.pad is not None:
            raise SessionError(
                "items with keys are not filled up: their state would follow from zeros",
                fix="leave pad= or key= out",
            )
        evict = self.evict
        if evict in ("error", "drop") or (isinstance(evict, Path) and evict.is_dir()):
            return
        raise SessionError(
            f"evict is {evict!r}" + (", and is not a folder" if isinstance(evict, Path) else ""),
            fix="use 'error', 'drop', or the pathlib.Path of a folder that is there",
        )

    def _check_keep(self) -> None:
        keep, drop = self.keep, self.drop
        if keep not in (None, "latest") and (type(keep) is not int or keep < 1):
            raise SessionError(f"keep is {keep!r}", fix="use 'latest', or a whole number from 1 on")
        if drop not in (None, "oldest", "newest"):
            raise SessionError(f"drop is {drop!r}", fix="use 'oldest' or 'newest'")
        if drop is not None and (keep is None or (keep == "latest" and drop == "newest")):
            raise SessionError(
                f"drop is {drop!r} and keep is {keep!r}",
                fix="say with keep=n how many items may wait for a slow stream, or leave drop= out",
            )

    @property
    def has_keyed_batches(self) -> bool:
        return self.key is not None and self.batch is not None

    @property
    def kept(self) -> int | None:
        """The largest number of waiting items of a live source; None if the source waits."""
        return 1 if self.keep == "latest" else self.keep

    @property
    def slots(self) -> int:
        """The number of slots for `max_in_flight` items, or for as many in full batches."""
        count = -(-self.max_in_flight // (self.batch or 1))
        # Variables of keys are handed on from item to item, which takes room for two.
        return count if self.key is None else max(2, count)

    @property
    def may_be_submitted(self) -> bool:
        """Whether items may be run like submitted ones: each alone, without a limit of time."""
        options = self.batch, self.key, self.max_delay_s, self.deadline_s, self.fetches
        return all(option is None for option in options)

    @property
    def names(self) -> frozenset[str]:
        return ALL if self.fetched is None else self.fetched.names

    @property
    def arrange(self) -> Callable[[Results], Any]:
        return dict if self.fetched is None else self.fetched.arranged

    def beyond_threads(self) -> StreamArguments:
        if not self.copy:
            raise SessionError(
                "views into memory of the session are for its own loop",
                fix="leave copy=False out, or stream with Session under trio",
            )
        names = StreamArguments.__annotations__.keys() - {"on_error", "copy"}
        return {name: getattr(self, name) for name in names}  # type: ignore[return-value]


def stream_options(plan: Plan, arguments: StreamArguments) -> StreamOptions:
    """Return `arguments` as options of a stream, by default for an item per slot of `plan`."""
    given = {name: value for name, value in arguments.items() if value is not None}
    known = StreamArguments.__annotations__
    if unknown := given.keys() - known:
        raise make_keyword_error(sorted(unknown), "stream", known)
    if arguments.get("batch") is not None and plan.ends.devices:
        raise SessionError(
            "arrays that are handed over or taken on devices are not stacked there",
            fix="leave batch= out, or inputs_on and outputs_on when planning",
        )
    # Of several keys, a batch is filled while another runs.
    batches = max(2, plan.in_flight) if "key" in given and "batch" in given else plan.in_flight
    given.setdefault("max_in_flight", batches * (arguments.get("batch") or 1))
    fetches = arguments.get("fetches")
    fetched = None if fetches is None else Fetched(fetches, plan.fetchable)
    key = arguments.get("key")
    read_key = None if key is None else KeyReader(key, plan.fed.inputs)
    only_input = plan.graph.inputs[0] if len(plan.graph.inputs) == 1 else None
    own = {"fetched": fetched, "read_key": read_key, "only_input": only_input}
    return StreamOptions(**given, **own)  # type: ignore[arg-type]


def check_order(plan: Plan, options: StreamOptions, whole: Plan) -> None:
    """Raise SessionError if `options` let items that assign to variables overtake others.

    `plan` is for the fetches, `whole` that of the session.
    """
    if options.key is not None:
        _check_keyed(plan, options, find_assigned(whole.fed))
        return
    if not has_assignments(plan.graph) or (options.ordered and options.slots == 1):
        return
    if plan.graph.late and options.ordered:  # items hand on their values
        return
    raise SessionError(
        "items of this graph assign to variables: each needs what the one before left there",
        fix="leave ordered=False and max_in_flight= out, or fetch what assigns nothing",
    )


def _check_keyed(plan: Plan, options: StreamOptions, changed: frozenset[str]) -> None:
    assigned = find_assigned(plan.graph)
    read = {plan.graph.variables[name].name for name in plan.graph.prepared}
    classes = [n for n in plan.graph.nodes if n.operator.owns and is_ordered(n.operator)]
    if not changed and not classes:
        raise SessionError(
            "the graph has no state for keys: it assigns no variable and calls no ordered class",
            fix="leave key= out; for a class among a pipeline's steps, give the class, not an "
            "object, and stream by the pipeline, or feed pipe.feeds(item, a dict for each key)",
        )
    if plan.request.commit == "item" and assigned:
        raise SessionError(
            'key= is given for a plan with commit="item", which runs one item at a time',
            fix='plan without commit="item"',
        )
    if only_read := sorted((read & changed) - assigned):
        raise SessionError(
            f"these fetches read the variable {only_read[0]!r}, and do not lead to its assignment",
            fix="fetch what assigns it, too, or leave key= or fetches= out",
        )
    for node in classes:
        device = plan.prototypes[plan.assignment[node.name]]
        if isinstance(options.evict, Path):
            raise SessionError(
                f"{node} has an instance for each key, which cannot be written to files",
                fix="use evict='error' or 'drop'",
            )
        if not may_run_anywhere(device):
            raise SessionError(
                f"{node} runs on {device.name!r}, which cannot have an instance for each key",
                fix=f"pin it to this process: pin={{{node.name!r}: 'cpu'}}",
            )
