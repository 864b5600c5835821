"""Real models with real inputs, for quantisation: what to calibrate with, and what to judge by.

Pages and lines of text are drawn, files are those of Python's library, sounds are made up of
vowels. Even ones are for calibration, odd ones for the judgement.
"""

from __future__ import annotations

import random
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import plait as pl
from PIL import Image, ImageDraw, ImageFont
from plait.graph.values.tensor import Array, spec_of
from plait.scheduler.shapes.specialise import specialise
from real_models import REAL_MODELS

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import magika_pipeline
import ocr_images
import ocr_pipeline
import voice_activity

Feeds: TypeAlias = dict[str, Array]
Outputs: TypeAlias = Mapping[str, Array]
Score: TypeAlias = Callable[[Outputs, Outputs], float]

WORDS = """streams that overlap survive and account for every microsecond while kernels run on
    devices whose memory was planned ahead Berlin Paris London 2024 1,299.00 No. 42 total: order
    invoice street 10115 +49 30 quick brown fox jumps over lazy dog EUR 7% @ (net)"""
SIZES, MARKED, SPOKEN = (18, 26, 34), 0.3, 0.5


@dataclass(frozen=True)
class Case:
    """A model and its inputs.

    Attributes
    ----------
    graph : callable
    items : callable
        Makes a number of inputs.
    question : str
        What `score` answers for an item.
    score : callable
        From 0 to 1: how well an item's outputs serve as those of floats do.
    """

    graph: Callable[[], pl.Graph]
    items: Callable[[int], list[Feeds]]
    question: str
    score: Score


def lines(count: int) -> Iterator[Image.Image]:
    """Draw lines of words."""
    choice = random.Random(0)
    for _ in range(count):
        text = " ".join(choice.choices(WORDS.split(), k=choice.randint(1, 4)))
        font = ImageFont.load_default(choice.choice(SIZES))
        right, bottom = map(int, font.getbbox(text)[2:])
        paper, ink = choice.randint(200, 255), choice.randint(0, 80)
        image = Image.new("RGB", (right + 8, bottom + 8), (paper,) * 3)
        ImageDraw.Draw(image).text((4, 4), text, (ink,) * 3, font)
        yield image


def pages(count: int) -> list[Feeds]:
    """Draw pages of lines, as the network that finds them is fed."""
    items = []
    drawn = lines(12 * count)
    for _ in range(count):
        page = Image.new("RGB", (640, 640), "white")
        for row in range(12):
            page.paste(next(drawn), (20 + 7 * row, 10 + 52 * row))
        pixels = np.asarray(page, np.float32)[None, :, :, ::-1].transpose(0, 3, 1, 2)
        items.append({"x": np.ascontiguousarray((pixels / 255 - 0.5) / 0.5)})
    return items


def lines_to_read(count: int) -> list[Feeds]:
    """Return drawn lines as the network that reads them is fed."""
    drawn = [np.ascontiguousarray(np.asarray(line)[..., ::-1]) for line in lines(count)]
    return [{"x": next(ocr_images.for_reading([line], [1], 32)).pixels} for line in drawn]


def lines_to_turn(count: int) -> list[Feeds]:
    """Return drawn lines, every second one on its head, as the network of directions is fed."""
    drawn = [np.asarray(line)[..., ::-1] for line in lines(count)]
    drawn = [line[::-1, ::-1] if index % 4 > 1 else line for index, line in enumerate(drawn)]
    whole = map(np.ascontiguousarray, drawn)
    return [{"x": next(ocr_images.for_direction([line], [1])).pixels} for line in whole]


def files(count: int) -> list[Feeds]:
    """Return files of many kinds as magika is fed."""
    folders = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")]
    kinds: dict[str, list[Path]] = {}
    for path in sorted(file for folder in folders for file in folder.glob("*/*")):
        if path.suffix and path.is_file() and path.stat().st_size > 64:
            kinds.setdefault(path.suffix, []).append(path)
    chosen = [paths[i] for i in range(count) for paths in kinds.values() if i < len(paths)]
    chosen = random.Random(0).sample(chosen, count)
    tokens = (magika_pipeline.content_features(path.read_bytes())[0] for path in chosen)
    return [{"bytes": each} for each in tokens]


def voice() -> pl.Graph:
    """Return the network that hears speech, at 16 kHz."""
    graph = pl.load(voice_activity.model_path())
    rate = np.array(16000)
    fixed = replace(
        graph,
        inputs=tuple(name for name in graph.inputs if name != "sr"),
        tensors={**graph.tensors, "sr": spec_of(rate)},
        constants={**graph.constants, "sr": rate},
    )
    return specialise(fixed, {"input": (1, 576), "state": (2, 1, 128)})


def sounds(count: int) -> list[Feeds]:
    """Return chunks of sound with the state that the network of floats left before each."""
    samples = voice_activity.synthesise(16000, 512 * count / 16000 + 1).samples
    state = np.zeros((2, 1, 128), np.float32)
    items = []
    with pl.BlockingSession(pl.plan(voice())) as session:
        for index in range(count):
            chunk = np.pad(samples, (64, 0))[512 * index : 512 * index + 576]
            items.append({"input": chunk[None], "state": state})
            state = session.run(items[-1])["stateN"]
    return items


def same_text(floats: Outputs, found: Outputs) -> float:
    """Compare what is read, character by character at best, as a whole here."""
    return float(_text(floats) == _text(found))


def _text(outputs: Outputs) -> str:
    (rows,) = (array[0] for array in outputs.values())
    return ocr_images.text_of(rows.argmax(1), rows.max(1), ocr_pipeline.alphabet())[0]


def overlap(floats: Outputs, found: Outputs) -> float:
    """Return the share of marked pixels that are marked by both."""
    a, b = ((next(iter(each.values())) > MARKED) for each in (floats, found))
    return float((a & b).sum() / max((a | b).sum(), 1))


def same_class(floats: Outputs, found: Outputs) -> float:
    a, b = (next(iter(each.values())).argmax(-1) for each in (floats, found))
    return float((a == b).mean())


def same_decision(floats: Outputs, found: Outputs) -> float:
    return float(((floats["output"] > SPOKEN) == (found["output"] > SPOKEN)).mean())


def _loaded(name: str) -> Callable[[], pl.Graph]:
    return lambda: pl.load(REAL_MODELS[name].path())


CASES: Mapping[str, Case] = {
    "PP-OCRv4 detection": Case(
        _loaded("PP-OCRv4 detection"), pages, "overlap of what is marked as text", overlap
    ),
    "PP-OCR direction": Case(
        _loaded("PP-OCR direction"), lines_to_turn, "same direction", same_class
    ),
    "PP-OCRv4 recognition": Case(
        _loaded("PP-OCRv4 recognition"), lines_to_read, "same text", same_text
    ),
    "magika": Case(_loaded("magika"), files, "same label", same_class),
    "silero-vad": Case(voice, sounds, "same decision", same_decision),
}


def halves(items: Sequence[Feeds]) -> tuple[list[Feeds], list[Feeds]]:
    """Return what to calibrate with, and what to judge by."""
    return list(items[::2]), list(items[1::2])
