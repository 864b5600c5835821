"""How fast are images read as a streamed pipeline, against the package that the networks are from?

Drawn pages of text, read by `examples/ocr_pipeline.py` with its sessions open and four images under
way, and by rapidocr-onnxruntime: in its own loop, image after image, each network on all cores; and
as one would make it faster by hand, images on as many threads as there are cores, each network on
one. The same pages, the same cores, in turns, everything warm. Once plait's networks run on ONNX
Runtime as well, each on a lane with one thread, so that what differs is how the work is put
together; once on its own kernels, text being found on a worker. How many of the lines say what the
package's own loop says is counted along: in the very widths that the package pads them to, they are
the same, but each page then has shapes of its own, which are planned first. `disturbance` is how
much of a core others took meanwhile.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import trio
from measure import save
from PIL import Image, ImageDraw, ImageFont
from plait.devices.ort.device import OrtDevice
from quiet import Watch
from rapidocr_onnxruntime import RapidOCR

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import ocr_pipeline

Texts: TypeAlias = list[list[str]]
Read: TypeAlias = Callable[[Sequence[Path]], Awaitable[Texts]]

WORDS = """streams that overlap survive and account for every microsecond while kernels run on
    devices whose memory was planned ahead Berlin Paris London 2024 1,299.00 No. 42 total: order"""
CORES = len(os.sched_getaffinity(0))
IN_FLIGHT = 4
OWN_LOOP = "rapidocr, its own loop"


def draw(folder: Path, count: int, lines: int) -> list[Path]:
    """Draw pages of lines of words, as long as chance has it."""
    choice, words, paths = random.Random(0), WORDS.split(), list[Path]()
    font = ImageFont.load_default(26)
    for index in range(count):
        rows = (" ".join(choice.choices(words, k=choice.randint(1, 4))) for _ in range(lines))
        page = Image.new("RGB", (736, 40 + 46 * lines), "white")
        ImageDraw.Draw(page).multiline_text((20, 20), "\n".join(rows), "black", font, spacing=20)
        paths.append(folder / f"{index}.png")
        page.save(paths[-1])
    return paths


def texts(found: Any) -> list[str]:
    """Return the lines of what the package says of an image."""
    return [text for _, text, _ in found[0] or ()]


async def by_package(reader: RapidOCR, paths: Sequence[Path]) -> Texts:
    return [texts(reader(str(path))) for path in paths]


async def by_threads(readers: Sequence[RapidOCR], paths: Sequence[Path]) -> Texts:
    """Read on a thread for each reader; a reader keeps state, so no two threads share one."""
    free = list(readers)

    def read(path: Path) -> list[str]:
        reader = free.pop()
        try:
            return texts(reader(str(path)))
        finally:
            free.append(reader)

    with ThreadPoolExecutor(len(readers)) as pool:
        return list(pool.map(read, paths))


async def by_plait(reader: ocr_pipeline.Reader, paths: Sequence[Path]) -> Texts:
    found: Texts = []
    async with ocr_pipeline.in_order(reader.read, paths, IN_FLIGHT) as results:
        async for result in results:
            if result.error is not None:
                raise result.error
            found.append([line.text for line in result.lines])
    return found


async def sides(stack: AsyncExitStack) -> dict[str, Read]:
    """Open everything that is compared."""

    async def plait(find: ocr_pipeline.Devices, read: ocr_pipeline.Devices, step: int) -> Read:
        plans = ocr_pipeline.make_plans(find, read)
        shapes = ocr_pipeline.Shapes(step=step)
        reader = await stack.enter_async_context(ocr_pipeline.open_reader(plans, shapes))
        return partial(by_plait, reader)

    singles = [RapidOCR(intra_op_num_threads=1) for _ in range(CORES)]
    return {
        OWN_LOOP: partial(by_package, RapidOCR()),
        "rapidocr, images on threads": partial(by_threads, singles),
        "plait, ort": await plait([ort("find"), "cpu"], [ort("read")], 32),
        "plait, ort, the very widths": await plait([ort("find"), "cpu"], [ort("read")], 1),
        "plait, worker and cpu": await plait(["worker:0"], ["cpu"], 32),
    }


def ort(name: str) -> OrtDevice:
    return OrtDevice(f"ort:{name}", threads=1)


async def compare(paths: Sequence[Path], rounds: int) -> dict[str, Any]:
    """Return seconds per image of each side, and how they compare with the package's own loop."""
    async with AsyncExitStack() as stack:
        readers = await sides(stack)
        wanted: Texts = []
        equal = dict.fromkeys(readers, 0)
        seconds = {name: list[float]() for name in readers}
        watch = Watch()
        for turn in range(rounds + 1):
            part = paths[turn :: rounds + 1]  # new pages each time: their shapes count
            for name, read in readers.items():
                start = time.perf_counter()
                found = await read(part)
                seconds[name].append((time.perf_counter() - start) / len(part))
                wanted = found if name == OWN_LOOP else wanted
                equal[name] += sum(map(same_lines, wanted, found))
    medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    return {
        "disturbance": watch.disturbance(),
        "lines as in its own loop": equal,
        "ms per image": {name: 1e3 * value for name, value in medians.items()},
        "times as fast": {name: medians[OWN_LOOP] / value for name, value in medians.items()},
    }


def same_lines(wanted: Sequence[str], found: Sequence[str]) -> int:
    return sum(a == b for a, b in zip(wanted, found, strict=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=5, help="in each round")
    parser.add_argument("--lines", type=int, default=12, help="on each page")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = draw(Path(folder), options.pages * (options.rounds + 1), options.lines)
        figures = trio.run(compare, paths, options.rounds)
    save("ocr", {"pages": options.pages, "in_flight": IN_FLIGHT, **figures})


if __name__ == "__main__":
    main()
