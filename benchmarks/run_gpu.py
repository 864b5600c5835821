"""Everything that only a GPU can show, in one run and one file: what `make gpu` calls.

Each question of ``gpu/`` has a process of its own and a limit of time; one that fails or takes too
long is noted, and the next one follows. The file is written anew with each line of an answer, so
that what was found is kept whatever happens, and a second run of the day asks for the rest only.
See docs/cuda.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import plait
from gpu import about
from gpu.question import LIMIT_ENV, Row, rows_in, text_of
from measure import RESULTS, write

HERE = Path(__file__).parent
MINUTES = 9.0
LIMITS_S = {
    "about": 30,
    "first": 90,
    "conformance": 110,
    "rounding": 60,
    "integers": 60,
    "samples": 60,
    "broken": 80,
    "sanitizer": 100,
    "completion": 30,
    "models": 65,
    "pipelines": 80,
    "overlap": 30,
    "memory": 30,
    "convolutions": 40,
    "attention": 30,
    "products": 30,
    "shares": 30,
    "workers": 30,
    "copies": 20,
    "launching": 30,
    "facts": 30,
    "interop": 20,
    "peers": 20,
    "partition": 60,
}
"""The questions, those first that tell most, and the most that each may take: all together may take
longer than there is time, since hardly any takes so long. What is not reached is asked next time.
"""
SIDE_BY_SIDE = frozenset(
    {"first", "conformance", "rounding", "integers", "samples", "broken", "sanitizer"}
)
"""Questions whose answers do not depend on time: those next to each other are asked at once."""
TOLD = 15
"""Lines of what a process said before it failed."""


@dataclass(frozen=True)
class Answer:
    """What became of one question.

    Attributes
    ----------
    name : str
    rows : tuple of Row
    seconds : float
    failure : str
        Why there are no more rows; empty when all went well.
    """

    name: str
    rows: tuple[Row, ...]
    seconds: float
    failure: str = ""

    @property
    def is_final(self) -> bool:
        """True where it need not be asked for again: it ended well, and no step of it failed."""
        failed = any(row.status == "failed" for row in self.rows)
        return bool(self.rows) and not failed and not self.failure

    def to_dict(self) -> dict[str, Any]:
        """Return what is worth saving."""
        found = {"seconds": round(self.seconds, 1), "rows": [row.to_dict() for row in self.rows]}
        return {**found, "failure": self.failure} if self.failure else found

    @classmethod
    def from_dict(cls, name: str, found: Mapping[str, Any]) -> Answer:
        """Return what was saved."""
        rows = rows_in("\n".join(map(json.dumps, found["rows"])))
        return cls(name, tuple(rows), found["seconds"], found.get("failure", ""))


UNDER_WAY = "was not done when the run ended"


def ask(
    name: str,
    arguments: Sequence[str],
    limit_s: float,
    told: Callable[[Answer], None] | None = None,
) -> Answer:
    """Ask one question in a process of its own, which is ended when its time is up.

    `told` is called with the answer as far as it goes, for each row of it.
    """
    command = [sys.executable, "-m", f"gpu.{name}", "--json", *arguments]
    environment = {**os.environ, LIMIT_ENV: str(limit_s)}
    start, rows = time.monotonic(), list[Row]()
    late = threading.Event()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command, cwd=HERE, env=environment, stdout=subprocess.PIPE, stderr=said, text=True,
            start_new_session=True,
        )  # fmt: skip

        def end() -> None:
            late.set()
            end_session(process.pid)

        timer = threading.Timer(limit_s, end)
        timer.start()
        assert process.stdout is not None
        with process, process.stdout:
            for line in process.stdout:
                rows += rows_in(line)
                if told is not None:
                    told(Answer(name, tuple(rows), time.monotonic() - start, UNDER_WAY))
        timer.cancel()
        said.seek(0)
        last = said.read().splitlines()[-TOLD:]
        failure = ""
        if late.is_set():
            failure = "; ".join([f"took more than {limit_s:.0f} s", *last[-1:]])
        elif process.returncode:
            failure = "\n".join([f"ended with {process.returncode}:", *last])
    return Answer(name, tuple(rows), time.monotonic() - start, failure)


def end_session(number: int) -> None:
    """Kill the processes of a session, whatever groups they are in, for the sake of the next."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if path.read_text().rpartition(")")[2].split()[3] == str(number):
                os.kill(int(path.parent.name), signal.SIGKILL)
    with suppress(ProcessLookupError):  # where there is no such list
        os.killpg(number, signal.SIGKILL)


def summary(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield lines that say what was met, what was not, and what is missing."""
    rows = [(each.name, row) for each in answers for row in each.rows]
    goals = [(name, row) for name, row in rows if row.met is not None]
    missed = [f"  {name}: {text_of(row)}" for name, row in goals if not row.met]
    yield f"{len(goals) - len(missed)} of {len(goals)} goals and expectations are met"
    yield from missed
    for status in ("failed", "left out"):
        found = [f"  {name}: {row.what}: {row.value}" for name, row in rows if row.status == status]
        yield f"{len(found)} {status}"
        yield from found
    for each in answers:
        if each.failure:
            yield f"{each.name} did not end well: {each.failure}"


def name_of(answers: Sequence[Answer], otherwise: str) -> str:
    """Return what the device is called, as a part of a file's name."""
    rows = (row for each in answers if each.name == "about" for row in each.rows)
    found = next((str(row.value) for row in rows if row.what == about.NAME), otherwise)
    return re.sub(r"[^a-z0-9]+", "-", found.lower()).strip("-")


def sources() -> str:
    """Return a digest of what is measured: answers are kept for as long as it is the same."""
    digest = hashlib.sha256()
    for folder in (
        Path(plait.__file__).parent / part for part in ("graph", "devices", "scheduler")
    ):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    for path in sorted(HERE.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def found_before(path: Path, asked: Mapping[str, Any]) -> dict[str, Answer]:
    """Return the answers in a file of the same day, if the same is asked now."""
    try:
        saved = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if any(saved.get(key) != value for key, value in asked.items()):
        return {}
    answers = (Answer.from_dict(name, each) for name, each in saved["answers"].items())
    return {each.name: each for each in answers}


class Run:
    """A run of questions, and the file that has all that is known at any moment.

    Parameters
    ----------
    folder : Path
    device : str
    asked : Mapping
        What the answers are for: saved with them.
    """

    def __init__(self, folder: Path, device: str, asked: Mapping[str, Any]) -> None:
        self.answers: dict[str, Answer] = {}
        self._folder, self._device, self._asked = folder, device, asked
        self._day = datetime.now(UTC)
        self._writing = threading.RLock()
        self._before: dict[str, Answer] | None = None

    @property
    def path(self) -> Path:
        """The file; it is called after the device, which the first answer names."""
        name = name_of([*self.answers.values()], self._device)
        return self._folder / f"gpu-{name}-{self._day:%Y-%m-%d}.json"

    def known(self, name: str) -> Answer | None:
        """Return the answer of an earlier run of the day, if there is one that will do."""
        with self._writing:
            found = self._load().get(name)
        return found if found is not None and found.is_final else None

    def keep(self, answer: Answer) -> None:
        """Write an answer, or as much of it as there is; nothing does not replace anything."""
        with self._writing:
            self.answers[answer.name] = answer  # the file is called after the first of them
            earlier = self._load().get(answer.name)
            if earlier is not None and not answer.rows:
                self.answers[answer.name] = earlier
            found = {name: each.to_dict() for name, each in self.answers.items()}
            write(self.path, {**self._asked, "answers": found})

    def _load(self) -> dict[str, Answer]:
        """Read what an earlier run has found, before its file is written over."""
        if self._before is None:
            self._before = found_before(self.path, self._asked)
            self.answers = {**self._before, **self.answers}
        return self._before


def together(names: Sequence[str]) -> Iterator[list[str]]:
    """Yield questions in their order, those in one list that may be asked at once."""
    for at_once, found in groupby(names, SIDE_BY_SIDE.__contains__):
        part = list(found)
        yield from [part] if at_once else ([name] for name in part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--only", default=",".join(LIMITS_S), help="questions, with commas between")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all of them")
    parser.add_argument("--small", action="store_true", help="try it out, with sizes for that")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder for the file")
    parser.add_argument("--again", action="store_true", help="ask what is known already, too")
    given = parser.parse_args()
    deadline = time.monotonic() + 60 * given.minutes
    arguments = ["--device", given.device, *(["--small"] if given.small else [])]
    asked = {"device": given.device, "small": given.small, "sources": sources()}
    run = Run(given.results, given.device, asked)

    def answered(name: str) -> tuple[Answer, bool]:
        """Return an answer, and whether it was known; it is kept as far as it goes."""
        # What it is that is measured is asked each time: the file is called after it.
        known = None if given.again or name == "about" else run.known(name)
        left_s = deadline - time.monotonic()
        if known is not None:
            return known, True
        if left_s < 1:
            return Answer(name, (), 0.0, "there was no time left"), False
        told = None if name == "about" else run.keep
        limit_s = left_s if name == given.only else min(LIMITS_S[name], left_s)
        return ask(name, arguments, limit_s, told), False

    for names in together(given.only.split(",")):
        with ThreadPoolExecutor(len(names)) as pool:
            for name, (answer, known) in zip(names, pool.map(answered, names), strict=True):
                if name == "about" and not any(row.what == about.NAME for row in answer.rows):
                    sys.exit("\n".join(["there is nothing to measure", *summary([answer])]))
                told = "known already" if known else f"{answer.seconds:.0f} s"
                print(f"\n{name}, {told}", flush=True)
                for row in answer.rows:
                    print(f"  {text_of(row)}", flush=True)
                run.keep(answer)
    print("", *summary([*run.answers.values()]), f"saved as {run.path}", sep="\n")


if __name__ == "__main__":
    main()
