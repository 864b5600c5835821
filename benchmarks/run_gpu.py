"""Everything that only a GPU can show, in one run and one file: what `make gpu` calls.

Each question of ``gpu/`` has a process of its own and a limit of time; one that fails or takes too
long is noted, and the next one follows. The file is written anew after each, so that what was found
is kept whatever happens. See docs/cuda.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu import about
from gpu.conformance import LIMIT_ENV
from gpu.question import Row, text_of
from measure import RESULTS, write

HERE = Path(__file__).parent
MINUTES = 7.0
LIMITS_S = {
    "about": 30,
    "rounding": 40,
    "integers": 60,
    "launching": 40,
    "completion": 45,
    "copies": 30,
    "overlap": 45,
    "conformance": 150,
    "models": 100,
    "products": 40,
    "convolutions": 40,
    "partition": 60,
    "interop": 20,
    "peers": 20,
    "facts": 30,
    "sanitizer": 60,
    "broken": 30,
}
"""The questions in their order, and the most that each may take: all together may take longer than
there is time, since hardly any takes so long."""
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

    def to_dict(self) -> dict[str, Any]:
        """Return what is worth saving."""
        found = {"seconds": round(self.seconds, 1), "rows": [row.to_dict() for row in self.rows]}
        return {**found, "failure": self.failure} if self.failure else found


def ask(name: str, arguments: Sequence[str], limit_s: float) -> Answer:
    """Ask one question in a process of its own, which is ended when its time is up."""
    command = [sys.executable, "-m", f"gpu.{name}", "--json", *arguments]
    # The tests have a process of their own to end in time.
    environment = {**os.environ, LIMIT_ENV: str(max(10.0, limit_s - 30))}
    start = time.monotonic()
    failure = ""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command, cwd=HERE, env=environment, stdout=subprocess.PIPE, stderr=said, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            printed, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            printed, _ = process.communicate()
            failure = f"took more than {limit_s:.0f} s"
        if process.returncode and not failure:
            said.seek(0)
            last = "\n".join(said.read().splitlines()[-TOLD:])
            failure = f"ended with {process.returncode}: {last}"
    return Answer(name, tuple(rows_in(printed)), time.monotonic() - start, failure)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--only", default=",".join(LIMITS_S), help="questions, with commas between")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all of them")
    parser.add_argument("--small", action="store_true", help="try it out, with sizes for that")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder for the file")
    given = parser.parse_args()
    start, deadline = datetime.now(UTC), time.monotonic() + 60 * given.minutes
    arguments = ["--device", given.device, *(["--small"] if given.small else [])]
    answers: list[Answer] = []
    for name in given.only.split(","):
        left_s = deadline - time.monotonic()
        if left_s < 1:
            answers.append(Answer(name, (), 0.0, "there was no time left"))
        else:
            answers.append(ask(name, arguments, min(LIMITS_S[name], left_s)))
        if name == "about" and not any(row.what == about.NAME for row in answers[-1].rows):
            sys.exit("\n".join(["there is nothing to measure", *summary(answers)]))
        print(f"\n{name}, {answers[-1].seconds:.0f} s", flush=True)
        for row in answers[-1].rows:
            print(f"  {text_of(row)}", flush=True)
        path = given.results / f"gpu-{name_of(answers, given.device)}-{start:%Y-%m-%d}.json"
        asked = {"device": given.device, "small": given.small}
        write(path, asked | {"answers": {each.name: each.to_dict() for each in answers}})
    print("", *summary(answers), f"saved as {path}", sep="\n")


if __name__ == "__main__":
    main()
