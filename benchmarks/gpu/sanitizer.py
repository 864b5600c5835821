"""Does compute-sanitizer find kernels that read or write outside of buffers, or that race?"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from gpu.question import Row, answer
from gpu.target import Target, Unsuitable

PROGRAM = "compute-sanitizer"
TOOLS = ("memcheck", "racecheck")
QUESTIONS = ("rounding", "convolutions", "products")
"""What runs under it, in small: elementwise kernels, windows, products."""
LIMIT_S = 48.0
FOUND = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")


def kernels(target: Target) -> Iterator[Row]:
    """Kernels under compute-sanitizer."""
    if not target.has_cupy:
        raise Unsuitable("asked of CUDA devices")
    program = shutil.which(PROGRAM)
    if program is None:
        raise Unsuitable(f"there is no {PROGRAM}")
    for tool in TOOLS:
        for question in QUESTIONS:
            yield _checked(program, tool, question, target.name)


def _checked(program: str, tool: str, question: str, device: str) -> Row:
    options = ["--tool", tool, "--report-api-errors", "no"]
    command = [sys.executable, "-m", f"gpu.{question}", "--device", device, "--small"]
    title = f"{tool}, {question}: errors"
    try:
        done = subprocess.run(
            [program, *options, *command],
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return Row(title, f"takes more than {LIMIT_S:.0f} s", status="left out")
    found = FOUND.findall(done.stdout)
    if not found:
        last = next(iter(reversed(done.stdout.strip().splitlines())), "it says nothing")
        return Row(title, last, status="failed")
    return Row(title, sum(map(int, found)), at_most=0, note=_first_error(done.stdout))


def _first_error(said: str) -> str:
    """Return the first thing that was found, such as an invalid write and the kernel's name."""
    told = (line.lstrip("= ") for line in said.splitlines() if line.startswith("========="))
    return next((line for line in told if line.startswith(("Invalid", "Error: Race"))), "")


if __name__ == "__main__":
    answer(kernels)
