"""Work counted in calls of functions, which the machine and its load do not change."""

from __future__ import annotations

import sys
from collections.abc import Callable
from cProfile import Profile
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import plait


def calls_of(run: Callable[[], object]) -> int:
    """Return how many functions are called, with each look at a generator's next value."""
    profile = Profile()
    profile.runcall(run)
    return sum(entry.callcount for entry in profile.getstats())


class Walk(NamedTuple):
    """Where a call leads inside of plait.

    Attributes
    ----------
    depth : int
        How many of plait's functions are under way at most, one called by the other.
        Comprehensions are part of the function that they stand in.
    files : frozenset of str
        In which they are.
    """

    depth: int
    files: frozenset[str]


def walk_of(run: Callable[[], object]) -> Walk:
    """Return where a call leads, on this thread."""
    root, tests = str(Path(plait.__file__).parent), str(Path(__file__).parents[1])
    under_way = list[bool]()
    depth, files = 0, set[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal depth
        if event == "call":
            code = frame.f_code
            file = code.co_filename
            inside = file.startswith(root) and not file.startswith(tests)
            if inside:
                files.add(file)
            under_way.append(inside and not code.co_name.startswith("<"))
            depth = max(depth, sum(under_way))
        elif event == "return" and under_way:
            under_way.pop()

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return Walk(depth, frozenset(files))
