"""Does compute-sanitizer find kernels that read or write outside of buffers, or that race?"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from gpu import samples
from gpu.question import Row, answer, rows_in
from gpu.target import Target, Unsuitable

PROGRAM = "compute-sanitizer"
TOOLS = ("memcheck", "racecheck", "synccheck")
AT_ONCE = max(2, len(os.sched_getaffinity(0)) // 4)
LIMIT_S = 90.0
FOUND = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")


def kernels(target: Target) -> Iterator[Row]:
    """Kernels under compute-sanitizer."""
    if not target.has_cupy:
        raise Unsuitable("asked of CUDA devices")
    program = shutil.which(PROGRAM) or shutil.which(PROGRAM, path="/usr/local/cuda/bin")
    if program is None:
        raise Unsuitable(f"there is no {PROGRAM}")
    names = [each.__name__ for each in samples.EXPERIMENTS]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        asked = [
            pool.submit(_checked, program, tool, name, target.name)
            for tool in TOOLS
            for name in names
        ]
        for each in as_completed(asked):
            yield each.result()


def _checked(program: str, tool: str, sample: str, device: str) -> Row:
    options = ["--tool", tool, "--report-api-errors", "no"]
    command = [sys.executable, "-m", "gpu.samples", "--json", "--device", device]
    command += ["--experiment", sample]
    title = f"{tool}, {sample}: errors"
    with subprocess.Popen(
        [program, *options, *command],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    ) as process:
        try:
            said, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # and what it has started
            return Row(title, f"takes more than {LIMIT_S:.0f} s", status="left out")
    found, rows = FOUND.findall(said), list(rows_in(said))
    if not found or not rows or process.returncode:
        last = next(iter(reversed(said.strip().splitlines())), "it says nothing")
        return Row(title, last, status="failed")
    wrong = [f"{row.what}: {row.value}" for row in rows if not row.met]
    note = _first_error(said) or "; ".join(wrong)
    return Row(title, sum(map(int, found)) + len(wrong), at_most=0, note=note)


def _first_error(said: str) -> str:
    """Return the first thing that was found, such as an invalid write and the kernel's name."""
    told = (line.lstrip("= ") for line in said.splitlines() if line.startswith("========="))
    return next((line for line in told if line.startswith(("Invalid", "Error: Race"))), "")


if __name__ == "__main__":
    answer(kernels)
