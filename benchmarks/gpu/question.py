"""Questions to a device, the rows that answer them, and how one is run alone."""

from __future__ import annotations

import argparse
import inspect
import json
import math
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeAlias

from gpu.target import Target, Unsuitable
from plait import PlaitError

AT_ONCE = 4
"""Processes that have an experiment each: what takes long in them is to import and to compile."""
EXPERIMENT_S = 90.0
LIMIT_ENV = "PLAIT_GPU_LIMIT_S"
"""How long the process of a question may take; without it there is no end to its time."""
_STARTED = time.monotonic()

Status: TypeAlias = Literal["measured", "failed", "left out"]


@dataclass(frozen=True)
class Row:
    """One line of an answer.

    Attributes
    ----------
    what : str
    value : float or str
    unit : str
    at_most, at_least : float, optional
        The goal.
    expected : str, optional
        What a fact was taken to be.
    note : str
    status : {"measured", "failed", "left out"}
        For the latter two `value` is the reason.
    """

    what: str
    value: float | str
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None
    expected: str | None = None
    note: str = ""
    status: Status = "measured"

    @property
    def met(self) -> bool | None:
        """Whether it is as good as it should be; None when nothing was said of that."""
        if self.status != "measured":
            return None
        if self.expected is not None:
            return self.value == self.expected
        if self.at_most is None and self.at_least is None:
            return None
        lowest = -math.inf if self.at_least is None else self.at_least
        highest = math.inf if self.at_most is None else self.at_most
        return lowest <= float(self.value) <= highest

    def to_dict(self) -> dict[str, Any]:
        """Return what is worth saving."""
        usual = (None, "", "measured")
        given = {key: value for key, value in asdict(self).items() if value not in usual}
        return given if self.met is None else {**given, "met": self.met}


def fact(what: str, value: bool, expected: bool, note: str = "") -> Row:
    """Return a row that says yes or no."""
    return Row(what, _yes(value), expected=_yes(expected), note=note)


def no_time(what: str) -> Row:
    """Return a row that says that it was not reached."""
    return Row(what, "there was no time left", status="left out")


def failed(what: str, error: BaseException) -> Row:
    """Return a row that says what went wrong."""
    first = next(iter(str(error).strip().splitlines()), "")
    fix = f"; {error.fix}" if isinstance(error, PlaitError) and error.fix else ""
    return Row(what, f"{type(error).__name__}: {first}{fix}"[:300], status="failed")


Experiment: TypeAlias = Callable[[Target], Iterator[Row]]


def rows_of(experiments: Sequence[Experiment], target: Target) -> Iterator[Row]:
    """Yield what experiments find; one that fails is a row, and the next one follows."""
    for experiment in experiments:
        title = inspect.cleandoc(experiment.__doc__ or experiment.__name__).splitlines()[0]
        try:
            yield from experiment(target)
        except Unsuitable as reason:
            yield Row(title, str(reason), status="left out")
        except Exception as error:
            traceback.print_exc()
            yield failed(title, error)


def time_left_s() -> float:
    """Return how long this process may go on, before whoever asked ends it."""
    return float(os.environ.get(LIMIT_ENV, math.inf)) - (time.monotonic() - _STARTED)


def rows_in(printed: str) -> Iterator[Row]:
    """Return the rows among lines; the last one may have been cut off."""
    known = {field.name for field in fields(Row)}
    for line in printed.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and "what" in found:
            yield Row(**{key: value for key, value in found.items() if key in known})


def rows_apart(names: Sequence[str], command: Sequence[str], limit_s: float) -> Iterator[Row]:
    """Yield what experiments find, each in a process of its own, as each is done.

    Parameters
    ----------
    names : sequence of str
    command : sequence of str
        What prints the rows of an experiment, whose name is put behind.
    limit_s : float
        For each of them.
    """

    def ask(name: str) -> list[Row]:
        try:
            done = subprocess.run(
                [*command, name], stdout=subprocess.PIPE, text=True, timeout=limit_s
            )
        except subprocess.TimeoutExpired:
            return [Row(name, f"took more than {limit_s:.0f} s", status="failed")]
        rows = list(rows_in(done.stdout))
        if done.returncode:
            rows.append(Row(name, f"ended with {done.returncode}", status="failed"))
        return rows

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in as_completed([pool.submit(ask, name) for name in names]):
            yield from done.result()


def answer(*experiments: Experiment, apart: bool = False) -> None:
    """Be the program that asks one question; `apart`, each experiment has a process of its own."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--device", default="cuda:0", help="what is measured (default cuda:0)")
    parser.add_argument("--small", action="store_true", help="try it out, with sizes for that")
    parser.add_argument("--json", action="store_true", help="a row of JSON for each figure")
    names = {each.__name__: each for each in experiments}
    parser.add_argument("--experiment", choices=names, help="one of them alone")
    given = parser.parse_args()
    chosen = experiments if given.experiment is None else (names[given.experiment],)
    rows: Iterable[Row]
    if apart and given.experiment is None:
        options = ["--json", "--device", given.device, *(["--small"] if given.small else [])]
        spec = sys.modules["__main__"].__spec__
        assert spec is not None, "run by its name: python -m gpu.first"
        command = [sys.executable, "-m", spec.name, *options, "--experiment"]
        rows = rows_apart(list(names), command, EXPERIMENT_S)
    else:
        rows = rows_of(chosen, Target.named(given.device, small=given.small))
    for row in rows:
        print(json.dumps(row.to_dict()) if given.json else text_of(row), flush=True)


def text_of(row: Row) -> str:
    """Return a row for people."""
    if row.status != "measured":
        return f"{row.what:64} {row.status}: {row.value}"
    # Versions and counts are told to the last digit.
    number = f"{row.value:.4g}" if isinstance(row.value, float) else str(row.value)
    value = f"{number} {row.unit}".rstrip()
    goals = (("at most", row.at_most), ("at least", row.at_least), ("expected", row.expected))
    goal = ", ".join(f"{word} {bound}" for word, bound in goals if bound is not None)
    verdict = {True: f"  ok ({goal})", False: f"  NOT {goal}", None: ""}[row.met]
    return f"{row.what:64} {value}{verdict}{'  ' + row.note if row.note else ''}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
