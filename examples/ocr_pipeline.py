"""Text in images: three networks, several images at a time, in the order of the images.

How many lines an image has is known when the first network has seen it, so this is not one graph
but three plans: boxes of text (the network, and a Python function that outlines what it marks), the
direction of each line, and its characters. An image is a task that goes from one session to the
next; images overlap because each session has a device of its own, and waits take no thread.

Needs ``pip install '.[onnx]' rapidocr-onnxruntime==1.4.4`` for the networks in it and the
packages that it brings; its code is not used. Without images, it reads some that it draws.

    python examples/ocr_pipeline.py [IMAGE ...] [--find worker:0] [--read cpu]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import ocr_images
import onnx
import plait as pl
import trio
from PIL import Image, ImageDraw, ImageFont
from plait.devices import Device

T = TypeVar("T")
R = TypeVar("R")
Devices: TypeAlias = Sequence[str | Device]

TURNED_ABOVE, READ_ABOVE = 0.9, 0.5
IN_FLIGHT = 4
POEM = """Slow streams
of light are braided,
each by its own road,
and meet on time.
""".splitlines()


class Line(NamedTuple):
    """A line of text: its corners in the image, what it says, and how sure that is."""

    box: ocr_images.Points
    text: str
    score: float


class Result(NamedTuple):
    """The lines of an image, or why there are none."""

    path: Path
    lines: Sequence[Line] = ()
    error: Exception | None = None


class Plans(NamedTuple):
    """How each of the three is run."""

    boxes: pl.Plan
    direction: pl.Plan
    characters: pl.Plan


def make_plans(find: Devices, read: Devices) -> Plans:
    """Plan for the devices where text is found, and those where it is read."""
    return Plans(
        pl.plan(boxes_graph(), find, max_in_flight=2),
        pl.plan(pl.load(model("ch_ppocr_mobile_v2.0_cls_infer")), read, max_in_flight=2),
        pl.plan(characters_graph(), read, max_in_flight=2),
    )


def boxes_graph() -> pl.Graph:
    """Return the graph from an image to its boxes of text, and how many there are."""
    b = pl.GraphBuilder("boxes")
    image = b.input("image", "uint8", ("height", "width", 3))
    size = b.input("size", "int32", (2,))
    centred = (image.astype("float32") * np.float32(1 / 255) - 0.5) / 0.5
    x = centred.transpose(2, 0, 1)[None]
    network = pl.load(model("ch_PP-OCRv4_det_infer"))
    (probability,) = b.include(network, {"x": x}, prefix="network/").values()
    boxes, count = b.call(ocr_images.find_boxes, probability, size, name="find")
    b.output("boxes", boxes)
    b.output("count", count)
    return b.build()


def characters_graph() -> pl.Graph:
    """Return the graph from lines to the best guess at each place along them, and its worth."""
    b = pl.GraphBuilder("characters")
    x = b.input("x", "float32", ("lines", 3, ocr_images.LINE_HEIGHT, "width"))
    network = pl.load(model("ch_PP-OCRv4_rec_infer"))
    (probability,) = b.include(network, {"x": x}, prefix="network/").values()
    b.output("best", probability.argmax(axis=2))
    b.output("probability", probability.max(axis=2))
    return b.build()


@cache
def alphabet() -> tuple[str, ...]:
    """Return what the guesses at characters stand for; the file of the network has it."""
    properties = onnx.load(model("ch_PP-OCRv4_rec_infer")).metadata_props
    (characters,) = (each.value for each in properties if each.key == "character")
    return ("", *characters.splitlines(), " ")


def model(name: str) -> Path:
    """Return the file of a network; the package around it is not imported."""
    spec = find_spec("rapidocr_onnxruntime")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("pip install rapidocr-onnxruntime==1.4.4")
    return Path(spec.origin).parent / "models" / f"{name}.onnx"


class Shapes(NamedTuple):
    """What the networks are fed: each shape takes a tenth of a second when it is first met.

    Attributes
    ----------
    side : int
        The least height and width in which text is looked for.
    step : int
        Lines are read as pixels of a multiple of this width.
    batches : tuple of int
        How many lines are read at once; one of them is 1.
    """

    side: int = 736
    step: int = 32
    batches: tuple[int, ...] = (4, 1)


USUAL = Shapes()


class Reader:
    """Reads images, any number at a time; made by `open_reader`."""

    def __init__(
        self,
        boxes: pl.Session,
        direction: pl.Session,
        characters: pl.Session,
        shapes: Shapes,
    ) -> None:
        self._boxes = boxes
        self._direction = direction
        self._characters = characters
        self._shapes = shapes

    async def read(self, path: Path) -> Result:
        """Return the text in an image; a file that is none has an error in its result."""
        try:
            page = await trio.to_thread.run_sync(ocr_images.load, path, self._shapes.side)
            found = await self._boxes.run({"image": page.fitted, "size": page.size})
            boxes = found["boxes"][: found["count"].item()]
            lines = await trio.to_thread.run_sync(ocr_images.crop, page.image, boxes)
            await self._turn(lines)
            texts = await self._texts(lines)
        except (OSError, pl.PlaitError) as error:
            return Result(path, error=error)
        places = zip(page.original(boxes), texts, strict=True)
        return Result(path, [Line(box, *text) for box, text in places if text[1] >= READ_ABOVE])

    async def _turn(self, lines: list[ocr_images.Pixels]) -> None:
        """Set lines that stand on their heads on their feet."""
        batches = ocr_images.for_direction(lines, self._shapes.batches)
        for batch in await trio.to_thread.run_sync(list, batches):
            (found,) = (await self._direction.run({"x": batch.pixels})).values()
            for index, (_, turned) in zip(batch.lines, found, strict=True):
                if turned > TURNED_ABOVE:
                    lines[index] = ocr_images.turned(lines[index])

    async def _texts(self, lines: Sequence[ocr_images.Pixels]) -> Sequence[tuple[str, float]]:
        """Return what each line says, and how sure that is."""
        texts = [("", 0.0)] * len(lines)
        batches = ocr_images.for_reading(lines, self._shapes.batches, self._shapes.step)
        for batch in await trio.to_thread.run_sync(list, batches):
            found = await self._characters.run({"x": batch.pixels})
            guesses = zip(found["best"], found["probability"], strict=True)
            for index, (best, probability) in zip(batch.lines, guesses, strict=True):
                texts[index] = ocr_images.text_of(best, probability, alphabet())
        return texts


@asynccontextmanager
async def open_reader(plans: Plans, shapes: Shapes = USUAL) -> AsyncIterator[Reader]:
    """Open what reading takes."""
    async with (
        pl.Session(plans.boxes) as boxes,
        pl.Session(plans.direction) as direction,
        pl.Session(plans.characters) as characters,
    ):
        yield Reader(boxes, direction, characters, shapes)


@trio.as_safe_channel
async def in_order(
    work: Callable[[T], Awaitable[R]], items: Iterable[T], most: int
) -> AsyncGenerator[R]:
    """Yield what work makes of items, in their order, with at most so many under way."""
    under_way: deque[tuple[list[R], trio.Event]] = deque()

    async def run(item: T, made: list[R], done: trio.Event) -> None:
        made.append(await work(item))
        done.set()

    async def first() -> R:
        made, done = under_way.popleft()
        await done.wait()
        return made[0]

    async with trio.open_nursery() as nursery:
        for item in items:
            if len(under_way) == most:
                yield await first()
            under_way.append(([], trio.Event()))
            nursery.start_soon(run, item, *under_way[-1])
        while under_way:
            yield await first()


def draw(folder: Path) -> list[Path]:
    """Draw images with text into a folder: straight, slanted, upside down, and dirty."""
    random = np.random.default_rng(0)
    font = ImageFont.load_default(32)
    paths = []
    for index, angle in enumerate((0, 3, 180, -5)):
        image = Image.new("RGB", (640, 480), "white")
        text = "\n".join(POEM[index::4])
        ImageDraw.Draw(image).multiline_text((60, 60), text, "black", font, spacing=24)
        image = image.rotate(angle, Image.Resampling.BICUBIC, fillcolor="white")
        dirty = np.asarray(image) + random.normal(0, 10 * index, (480, 640, 3))
        paths.append(folder / f"{angle} degrees.png")
        Image.fromarray(dirty.clip(0, 255).astype(np.uint8)).save(paths[-1])
    return paths


async def print_texts(plans: Plans, paths: Sequence[Path]) -> None:
    """Read images and print what they say, each as soon as it and those before it are read."""
    async with open_reader(plans) as reader, in_order(reader.read, paths, IN_FLIGHT) as results:
        async for result in results:
            print(result.path.name, result.error or "")
            for line in result.lines:
                print(f"  {line.score:4.0%} at {line.box[0]}: {line.text}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Read the text in images.")
    parser.add_argument("images", type=Path, nargs="*", metavar="IMAGE")
    parser.add_argument("--find", default="worker:0", help="devices that find where text is")
    parser.add_argument("--read", default="cpu", help="devices that read what it says")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        try:
            plans = make_plans(options.find.split(","), options.read.split(","))
            paths = options.images or draw(Path(folder))
            start_s = time.perf_counter()
            trio.run(print_texts, plans, paths)
        except (pl.PlaitError, ModuleNotFoundError) as error:
            parser.exit(2, f"{error}\n")
    count = "1 image" if len(paths) == 1 else f"{len(paths)} images"
    print(f"{count} in {time.perf_counter() - start_s:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
