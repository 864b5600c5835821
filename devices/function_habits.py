"""Functions that keep arrays: their inputs, which are lent, or buffers that they return again.

A function is lent read-only views of planned memory, which the next item overwrites. A moving
average, a frame difference or a tracker keeps such a view, and would compute with another item's
values. So reference counts are compared after each call, as they are for results
(`donation.check_unshared`). The views are based on a memoryview: numpy makes all views that a
function derives refer to the first one, and not to the memory's owner.

The first call gets copies. If it keeps one, so do all later calls, and nothing goes wrong. If a
later call is the first to keep a view, that call fails: its array can be neither moved nor spared.

A function that returns a buffer which it keeps must not run for two items at once: its calls take
turns from the first such result on.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from threading import RLock
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, ref

import numpy as np

from ..graph.values.errors import OperatorError
from ..graph.values.tensor import Array, read_only
from .donation import Donation
from .memory import View

logger = logging.getLogger(__name__)


class HeldValue:
    """An argument that is a Python object, or a list of some, read when the function is called."""

    def __init__(self, view: View) -> None:
        self.place = view.donation or view

    def read(self) -> Any:
        return self.place.array.tolist()


Argument: TypeAlias = Array | Donation | HeldValue | None


class Habits:
    """Habits that the calls of a function have shown. Thread-safe."""

    def __init__(self) -> None:
        self.was_called = self.keeps_inputs = self.returns_kept = False
        self.lock = RLock()

    def note_results(self, label: str, shared: Iterable[ref[Array]]) -> None:
        """Make calls of the node `label` take turns if a result in `shared` is still alive."""
        if not self.returns_kept and any(one() is not None for one in shared):
            self.returns_kept = True
            logger.info("%s returns an array that it keeps: its calls take turns", label)


_habits: WeakKeyDictionary[Callable[..., Any], Habits] = WeakKeyDictionary()


def find_habits(function: Callable[..., Any]) -> Habits:
    function = getattr(function, "__func__", function)
    try:
        return _habits.setdefault(function, Habits())
    except TypeError:  # some callables take no weak references
        return Habits()


class LentInputs:
    """The inputs of the calls of a node, one call at a time.

    Parameters
    ----------
    label : str
        The node's, for messages.
    name_input : callable
        Returns the formal name of an input, given its index.
    lasting : collection of int
        Indices of arguments that are not overwritten for other items.
    habits : Habits
        Of the function.
    """

    def __init__(
        self,
        label: str,
        name_input: Callable[[int], str],
        arguments: Sequence[Argument],
        lasting: Collection[int],
        habits: Habits,
    ) -> None:
        self._is_learning = False
        self._label, self._name_input, self._habits = label, name_input, habits
        self._arguments = arguments
        # For lent arguments: a view for all calls, or None if reference counts would not show its
        # use.
        self._views = {
            index: None if isinstance(one, Donation) else _lend(one)
            for index, one in enumerate(arguments)
            if index not in lasting and isinstance(one, np.ndarray | Donation)
        }
        self._held = [
            (index, one) for index, one in enumerate(arguments) if isinstance(one, HeldValue)
        ]
        self._donations = [
            (index, one) for index, one in enumerate(arguments) if isinstance(one, Donation)
        ]
        self._is_unchecked = False  # the last call has not ended, or failed
        self._usual = False  # the arguments of the last call are those of the next
        self._taken: list[Any] = []
        self._watched: list[tuple[int, Array]] = []
        self._counts: list[int] = []

    def take(self) -> Sequence[Any]:
        if self._is_unchecked:
            self._renew()
        self._is_unchecked = True
        if self._usual and not self._habits.keeps_inputs:
            for index, donation in self._donations:
                if not donation.is_given:
                    break  # its memory is planned, and was another array in the last call
                # Its memory is its own, and lives as long as its views do.
                self._taken[index] = read_only(donation.array)
            else:
                return self._taken
        self._prepare()
        self._counts = _count(self._watched)  # here, where no variable refers to an argument
        return self._taken

    def _prepare(self) -> None:
        habits = self._habits
        keeps = habits.keeps_inputs
        is_learning = self._is_learning = not (habits.was_called or keeps)
        taken: list[Any] = list(self._arguments)
        for index, held in self._held:
            taken[index] = held.read()
        watched: list[tuple[int, Array]] = []
        is_usual = not (is_learning or habits.keeps_inputs or self._held)
        for index, view in self._views.items():
            array = taken[index]
            if isinstance(array, Donation):
                if array.is_given:
                    taken[index] = read_only(array.array)
                    continue
                is_usual, array = False, array.array
                view = _lend(array)
            assert array is not None
            if is_learning or keeps or view is None:
                is_usual = False
                taken[index] = _copy(array)
                if is_learning:
                    watched.append((index, taken[index]))
            else:
                taken[index], flat = view
                watched += (index, view[0]), (index, flat)
        # Until the counts are compared, or for all later calls if they are unchanged.
        self._taken, self._watched, self._usual = taken, watched, is_usual

    def _renew(self) -> None:
        """Lend new views: the frames of an exception refer to the old ones."""
        self._taken, self._watched, self._usual = [], [], False
        self._views = {
            index: None if view is None else _lend(self._arguments[index])
            for index, view in self._views.items()
        }

    def find_shared(self, results: Any) -> list[ref[Array]]:
        """Return weak references to memory of `results` that are neither inputs nor constants."""
        arrays = [one for one in self._arguments if isinstance(one, np.ndarray)]
        arrays += [one.array for one in self._arguments if isinstance(one, Donation)]
        arrays += [one for _, one in self._watched]
        known = {id(one) for one in (*arrays, *map(_find_root, arrays))}
        found = results if isinstance(results, tuple) else (results,)
        roots = [_find_root(one) for one in found if isinstance(one, np.ndarray)]
        return [ref(one) for one in roots if id(one) not in known]

    def check(self) -> None:
        """Check for arguments that the call has kept, once its results have been dropped.

        Raises OperatorError if it has kept memory that later items overwrite.
        """
        habits, self._is_unchecked = self._habits, False
        if self._counts != _count(self._watched) and self._find_kept():
            gc.collect()  # an exception that was caught may hold the call's frame in a cycle
            _clear_finished_frames([array for _, array in self._watched])
            kept, self._counts = self._find_kept(), []
            if kept:
                self._refuse(self._name_input(kept[0]))
            habits.keeps_inputs = True  # also saves later collections of garbage
        habits.was_called = True
        if not self._usual or habits.keeps_inputs:
            self._taken, self._watched, self._usual = [], [], False

    def _refuse(self, name: str) -> None:
        habits = self._habits
        habits.keeps_inputs = True
        logger.warning("%s keeps its input %r: its inputs are copied", self._label, name)
        if not self._is_learning:
            self._taken, self._watched, self._usual = [], [], False
            raise OperatorError(
                f"the function keeps its input {name!r}, whose memory other items use after it",
                fix=f"keep a copy: {name}.copy(); from now on its inputs are copied",
            )

    def _find_kept(self) -> list[int]:
        counts = _count(self._watched)
        pairs = zip(self._watched, counts, self._counts, strict=True)
        return [index for (index, _), count, before in pairs if count > before]


class CopiedInputs(LentInputs):
    """Copies of inputs, to which results that are Python objects may refer; or none is lent."""

    def take(self) -> Sequence[Any]:
        taken: list[Any] = list(self._arguments)
        for index, held in self._held:
            taken[index] = held.place.array.tolist()
        for index in self._views:
            one = taken[index]
            if type(one) is not Donation:
                taken[index] = _copy(one)
            else:
                taken[index] = read_only(one.array) if one.is_given else _copy(one.array)
        return taken

    def check(self) -> None:
        """Do nothing."""


class TrustedInputs(LentInputs):
    """The inputs of the calls of a function of plait's own, which keeps and writes none of them.

    Rows are read until their batch ends, which may be a moment after the call.
    """

    def take(self) -> Sequence[Any]:
        return read_values(self._arguments)

    def find_shared(self, results: Any) -> list[ref[Array]]:
        """Return no memory: results are new."""
        return []

    def check(self) -> None:
        """Do nothing."""


def read_values(arguments: Sequence[Argument]) -> list[Any]:
    return [
        read_only(one.array)
        if isinstance(one, Donation)
        else one.read()
        if isinstance(one, HeldValue)
        else one
        for one in arguments
    ]


def run_in_turn(habits: Habits, inputs: LentInputs, run: Callable[[], object]) -> None:
    """Call `run` and check `inputs`; calls take turns if `habits` say that buffers are kept."""
    if habits.returns_kept:
        with habits.lock:
            run()
    else:
        run()
    inputs.check()


def _find_root(array: Array) -> Array:
    """Return the array that owns the memory of `array`, as far as numpy shows it."""
    return array.base if isinstance(array.base, np.ndarray) else array


def _count(arrays: Iterable[tuple[int, Array]]) -> list[int]:
    return [sys.getrefcount(one) for _, one in arrays]


def _clear_finished_frames(arrays: Sequence[Array]) -> None:
    """Clear the variables of finished frames that refer to `arrays`.

    The loop of an async function may hold an exception until it runs another task, such as the end
    of a sleep, and from Python 3.12 on the function's frame with it.
    """
    frames = [one for one in gc.get_referrers(*arrays) if isinstance(one, FrameType)]
    unfinished = _find_unfinished_frames() if frames else ()
    for frame in frames:
        if id(frame) not in unfinished:
            frame.clear()


def _find_unfinished_frames() -> set[int]:
    """Return the ids of the frames of threads, coroutines and generators."""
    found = set[int]()
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            found.add(id(frame))
            frame = frame.f_back
    del top  # the frame of this very call would keep itself, and arrays
    for one in gc.get_objects():
        if isinstance(one, CoroutineType):
            found.add(id(one.cr_frame))
        elif isinstance(one, GeneratorType):
            found.add(id(one.gi_frame))
        elif isinstance(one, AsyncGeneratorType):
            found.add(id(one.ag_frame))
    return found


def _lend(array: Array) -> tuple[Array, Array] | None:
    """Return a read-only view of `array`, and the flat array that its views refer to, or None."""
    if array.dtype.hasobject or not array.flags.c_contiguous or not _ARE_EXACT:
        return None
    flat = np.frombuffer(memoryview(array.reshape(-1).view(np.uint8)), array.dtype)
    flat.flags.writeable = False
    return flat.reshape(array.shape), flat


def _copy(array: Array) -> Array:
    copied = array.copy()
    copied.flags.writeable = False
    return copied


_ARE_EXACT = bool(getattr(sys, "_is_gil_enabled", lambda: True)())
"""Without a global lock of the interpreter, counts of references are not exact."""
