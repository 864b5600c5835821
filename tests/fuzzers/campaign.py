"""Damaged files by the thousand: ``python campaign.py --seconds 60 --seed 1 [READER ...]``.

Whatever is read loads, or is refused by an error of plait's that is no InternalError; it takes
neither more processor time nor more memory than a limit, and never ends the process. Each reader
runs in a process of its own, which a signal ends when one input takes too long, in C too; then
another one goes on behind that input. Input number i of a reader follows from the seed alone.

A line is printed for each reader; inputs that fail are kept in a folder, the first of each kind.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

HANG_S = 10.0
"""Processor time that one input may take; the slowest that is known takes a tenth of a second."""

SHARE, FLOOR = 10, 64 << 20
"""Memory that one input may take: so many times its size, or so many bytes, such as a library's
that is imported when first needed."""

MOST_BYTES = 2 << 30
"""Address space that a process may take on top of what it has when it begins."""

WARM_UP, MOST_ENDS = 5, 20
START_S = 120.0
ENDED = "ended the process"
TESTS = Path(__file__).resolve().parents[1]
PATHS = [str(TESTS), str(TESTS / "support")]


@dataclass
class Findings:
    """What came of inputs.

    Attributes
    ----------
    reader : str
    seed : int
    count : int
        Which input is next.
    outcomes : dict of str to int
        How many loaded, and how many failed by which error.
    failures : dict of str to str
        By what is wrong: the file in which the first such input is kept.
    """

    reader: str
    seed: int
    count: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        outcomes = ", ".join(f"{count:,} {name}" for name, count in self.outcomes.most_common())
        lines = [f"{self.reader}: {self.outcomes.total():,} inputs of seed {self.seed}: {outcomes}"]
        lines += [f"  {what}: {file}" for what, file in self.failures.items()]
        return "\n".join(lines)


def campaign(
    readers: Sequence[str],
    seed: int,
    *,
    start: int = 0,
    count: int = 1 << 40,
    seconds: float = 60.0,
    keep: Path,
) -> list[Findings]:
    """Try the inputs from number `start` to before `count` of each reader, or each for so long."""
    pending = found = [Findings(name, seed, start) for name in readers]
    with tempfile.TemporaryDirectory() as folder:
        while pending:
            pending = _go_on(pending, count, seconds, Path(folder), keep)
    return found


def _go_on(
    pending: list[Findings], count: int, seconds: float, folder: Path, keep: Path
) -> list[Findings]:
    """Try inputs in a process of their own, until one of them ends it; return what is left."""
    by_name = {one.reader: one for one in pending}
    command = [sys.executable, __file__, *by_name, "--seed", str(pending[0].seed), "--inside"]
    command += ["--start", str(pending[0].count), "--count", str(count), "--seconds", str(seconds)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*PATHS, *filter(None, sys.path)]),
    }
    with (folder / "stderr").open("w+b") as errors:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=errors
        )
        try:
            out, _ = process.communicate(timeout=seconds * len(pending) + START_S)
        except subprocess.TimeoutExpired:  # it waits for something: that takes no processor time
            process.kill()
            out, _ = process.communicate()
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip().splitlines()
    for line in out.splitlines():
        told = json.loads(line)
        found = by_name[told["reader"]]
        found.count = told["done"]
        found.outcomes.update(told["outcomes"])
        for what, data in told["wrong"].items():
            if what not in found.failures:
                found.failures[what] = _kept(bytes.fromhex(data), found.reader, keep)
    if not process.returncode:
        return []
    current = folder / "current"
    if not current.exists():
        raise RuntimeError(f"{pending[0].reader} does not start:\n" + "\n".join(said[-20:]))
    name, index, data = current.read_bytes().split(b"\n", 2)
    current.unlink()
    found = by_name[name.decode()]
    what = {
        -signal.SIGVTALRM: f"takes more than {HANG_S:g} s",
        -signal.SIGKILL: "waits without end, or is killed for want of memory",
    }.get(process.returncode, f"ends the process with {process.returncode}: {said[-1:]}")
    found.failures.setdefault(what, _kept(data, found.reader, keep))
    found.count = int(index) + 1
    found.outcomes[ENDED] += 1
    left = pending[pending.index(found) :]
    return left if found.count < count and found.outcomes[ENDED] < MOST_ENDS else left[1:]


def _kept(data: bytes, reader: str, keep: Path) -> str:
    keep.mkdir(parents=True, exist_ok=True)
    file = keep / f"{reader.replace(' ', '-')}-{hashlib.sha256(data).hexdigest()[:12]}.bin"
    file.write_bytes(data)
    return str(file)


def try_inputs(name: str, seed: int, start: int, count: int, seconds: float) -> None:
    """Try inputs one by one, and say on stdout what came of them."""
    from fuzzers.all_readers import READERS

    warnings.simplefilter("ignore")
    written, current = Path("../written"), Path("../current")
    reader, end = READERS[name](), time.monotonic() + seconds
    for index in range(WARM_UP):  # what is imported late is not the input's fault
        _outcome(reader.read, reader.samples[index % len(reader.samples)])
        _outcome(reader.read, reader.make(Random(f"warm {name} {index}")))
    outcomes: Counter[str] = Counter()
    wrong: dict[str, str] = {}
    index = start
    while index < count and time.monotonic() < end:
        data = reader.make(Random(f"{name} {seed} {index}"))
        written.write_bytes(b"%s\n%d\n" % (name.encode(), index) + data)
        written.replace(current)  # the process may be killed while it writes
        signal.setitimer(signal.ITIMER_VIRTUAL, HANG_S)
        before = _peak_from_now()
        outcome, detail = _outcome(reader.read, data)
        grown = _peak() - before
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        if detail is None and grown > max(SHARE * len(data), FLOOR):
            detail = f"takes {grown >> 20} MiB for {len(data)} bytes"
        outcomes[outcome] += 1
        index += 1
        if detail is not None:
            wrong.setdefault(detail, data.hex())
        if detail is not None or index % 256 == 0 or index == count:
            _tell(name, index, outcomes, wrong)
    _tell(name, index, outcomes, wrong)


def _tell(name: str, done: int, outcomes: Counter[str], wrong: dict[str, str]) -> None:
    told = {"reader": name, "done": done, "outcomes": outcomes, "wrong": wrong}
    print(json.dumps(told), flush=True)
    outcomes.clear()


def _outcome(read: Callable[[bytes], object], data: bytes) -> tuple[str, str | None]:
    """Return what came of an input, and what is wrong with that."""
    from plait import InternalError, PlaitError

    try:
        read(data)
    except PlaitError as error:
        if not isinstance(error, InternalError) and not _lacks_memory(error):
            return type(error).__name__, None
        return type(error).__name__, _signature(error)
    except Exception as error:
        return type(error).__name__, _signature(error)
    return "loaded", None


def _lacks_memory(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, MemoryError):
            return True
        error = error.__cause__
    return False


def _signature(error: BaseException) -> str:
    """Return the error and the innermost place in plait."""
    frames = traceback.extract_tb(error.__traceback__)
    tests = str(TESTS)
    ours = [one for one in frames if not one.filename.startswith(tests)] or frames
    inner = next((one for one in reversed(ours) if "plait" in one.filename), ours[-1])
    return f"{type(error).__name__} in {Path(inner.filename).name}:{inner.lineno} {inner.name}"


def _limit_address_space() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def _peak_from_now() -> int:
    """Forget how much memory was in use before, and return how much is now."""
    with suppress(OSError):  # not in every container; then the peak is that of all inputs so far
        Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("readers", nargs="*")
    parser.add_argument("--seconds", type=float, default=60.0, help="for all readers together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--count", type=int, default=1 << 40)
    parser.add_argument("--keep", type=Path, default=TESTS.parent / ".fuzz")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        _limit_address_space()
        for place, name in enumerate(given.readers):
            os.makedirs(name, exist_ok=True)
            os.chdir(name)
            try_inputs(name, given.seed, 0 if place else given.start, given.count, given.seconds)
            os.chdir("..")
        return 0
    from fuzzers.all_readers import READERS

    names = given.readers or list(READERS)
    failed = 0
    for name in names:
        seconds, keep = given.seconds / len(names), given.keep.absolute()
        (found,) = campaign(
            [name], given.seed, start=given.start, count=given.count, seconds=seconds, keep=keep
        )
        print(found, flush=True)
        failed += len(found.failures)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.path[:0] = PATHS
    sys.exit(main())
