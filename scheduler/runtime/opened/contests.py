"""Contests: a rival device computes some of a session's items again, to learn which is faster.

A plan of ``devices="auto"`` places networks by built-in figures. While its session runs, a rival is
loaded in a thread and then computes the inputs of some items into memory of its own. Loading and
runs take at most `SHARE` of the time that the subgraph itself took. The answer serves later plans:
a session that changed devices would change variables and results by rounding within a stream.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Semaphore, Thread
from time import perf_counter
from typing import cast

import numpy as np

from ....devices.device import Scaling
from ....devices.errors import KernelError
from ....devices.event import Event
from ....devices.host import HostProgram, count_cores, is_machine_loaded
from ....devices.kinds import get_kind
from ....devices.memory import View, host_arena, host_view
from ....devices.registry import find
from ....graph.values.tensor import Array
from ...costs.choices import DeviceChoices, note_answer, read_answers
from ...plans.partition import Subgraph

SHARE = 0.05
"""Limit of a contest's time relative to the subgraph's own time."""

LOADING = 8
"""Estimated time to load a rival, whose package is imported, relative to the device's own."""

MARGIN = 0.05
"""The share by which a rival must be faster."""

TURNS, MOST_TURNS, CERTAIN = 7, 50, 3
"""A contest ends when the mean ratio is `CERTAIN` standard errors away from the margin."""

TOLERANCE, ROUNDINGS = 1e-3, 16
"""Greatest difference of a rival's floats, relative to the largest of the tensor, or this number of
roundings of its dtype if that is more. Integers and booleans must be equal."""

_only_one = Semaphore()
"""Held by the contest that has a rival: each has a model, and takes time from all."""


class Contest:
    """A subgraph's program that sometimes has a rival compute the same inputs.

    `load_s` is the time that compiling the program took.
    """

    def __init__(
        self,
        choices: DeviceChoices,
        part: Subgraph,
        program: HostProgram,
        views: Mapping[str, View],
        load_s: float,
        cores: int,
    ) -> None:
        self.graph, self._program, self._views, self._cores = part.graph, program, views, cores
        self._key, self._kind = choices.key(part.graph), get_kind(part.device)
        self._rival_kind = next(one for one in choices.software if one != self._kind)
        self._own_s, self._spent_s, self._next_s = 0.0, 0.0, LOADING * load_s
        self._ratios: list[float] = []  # logarithms: delays count as much on either side
        self._is_over = False
        self._loading: Thread | None = None
        self._rival: tuple[HostProgram, Mapping[str, View]] | None = None

    def __call__(self) -> None:
        self._time(self._program)

    def run(self, event: Event) -> None:
        self._time(lambda: self._program.run(event))

    def close(self) -> None:
        """Release the rival, once it is loaded."""
        self._is_over, loading, self._loading = True, self._loading, None
        if loading is not None:
            loading.join()
            _only_one.release()
        self._rival = None

    def _time(self, run: Callable[[], None]) -> None:
        start = perf_counter()
        run()
        seconds = perf_counter() - start
        self._own_s += seconds
        next_s = self._next_s or 2 * seconds
        if self._is_over or self._own_s * SHARE < self._spent_s + next_s:
            return
        if is_machine_loaded(count_cores()):  # ratios of disturbed runs say little
            self._spent_s = self._own_s * SHARE
        elif self._loading is None:
            self._is_over = self._key in read_answers()  # by another session
            if not self._is_over and _only_one.acquire(blocking=False):
                loading = Thread(target=self._load, name="plait-contest")
                try:
                    loading.start()
                    self._loading = loading
                except RuntimeError:  # no more threads, and no rival
                    _only_one.release()
                    self._is_over = True
        elif not self._loading.is_alive():
            answer = self._take_turn(seconds)
            if answer is not None:
                note_answer(self._key, answer)
            if answer is not None or self._rival is None:
                self.close()

    def _load(self) -> None:
        start, graph = perf_counter(), self.graph
        with suppress(Exception):  # such as too little memory: another process may have more
            try:
                device = find(self._rival_kind)
                for node in graph.nodes:
                    if not (support := device.supports(node, graph.call(node))).ok:
                        raise KernelError(support.reason, at=str(node))
                specs = {name: graph.tensors[name] for name in (*graph.inputs, *graph.outputs)}
                views = {n: host_view(host_arena(one.nbytes), 0, one) for n, one in specs.items()}
                program = cast(Scaling, device).compile_on(self._cores, graph, views)
                self._rival = cast(HostProgram, program), views
            except KernelError:
                note_answer(self._key, self._kind)
        self._spent_s, self._next_s = perf_counter() - start, 0.0

    def _take_turn(self, seconds: float) -> str | None:
        """Have the rival compute an item that took `seconds`; return the faster kind if decided."""
        if self._rival is None:
            return None
        start, (program, views) = perf_counter(), self._rival
        ours = {name: (view.donation or view).array for name, view in self._views.items()}
        for name in self.graph.inputs:
            np.copyto(views[name].array, ours[name])
        try:
            program()  # its weights may have left the caches since the last turn
            timed = perf_counter()
            program()
        except KernelError:  # the item has its results
            return self._kind
        self._ratios.append(math.log((perf_counter() - timed) / seconds))
        pairs = ((views[name].array, ours[name]) for name in self.graph.outputs)
        is_same = all(is_within_tolerance(*pair) for pair in pairs)
        self._next_s = perf_counter() - start
        self._spent_s += self._next_s
        count, mean, least = len(self._ratios), np.mean(self._ratios), math.log(1 - MARGIN)
        is_clear = abs(mean - least) * math.sqrt(count) > CERTAIN * np.std(self._ratios)
        if is_same and (count < TURNS or (not is_clear and count < MOST_TURNS)):
            return None
        return self._rival_kind if is_same and mean < least else self._kind


def is_contested(choices: DeviceChoices, part: Subgraph) -> bool:
    are_numbers = all(spec.dtype.kind in "biuf" for spec in part.graph.tensors.values())
    is_open = choices.measures and get_kind(part.device) in choices.software and are_numbers
    return is_open and choices.key(part.graph) not in choices.answers


def is_within_tolerance(found: Array, expected: Array) -> bool:
    if expected.dtype.kind != "f":
        return np.array_equal(found, expected)
    near = max(TOLERANCE, ROUNDINGS * float(np.finfo(expected.dtype).eps))
    largest = np.abs(expected, where=np.isfinite(expected), out=np.zeros_like(expected))
    return np.allclose(found, expected, 0, near * float(largest.max(initial=0.0)), equal_nan=True)
