"""Images of many sizes as JPEG files: photographs that scikit-image carries, and drawn pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .pipeline import in_package

WORDS = """streams that overlap survive and account for every microsecond while kernels run on
    devices whose memory was planned ahead Berlin Paris London 2024 1,299.00 No. 42 total: order"""
FACE = (slice(0, 280), slice(90, 370))
"""Where the astronaut's face is."""


def photographs(turn: int, count: int) -> Sequence[bytes]:
    """Return photographs with up to four faces each in front, as JPEG files of any size."""
    random, found = np.random.default_rng([turn, count]), []
    for _ in range(count):
        height, width = random.integers(320, 960, 2).tolist()
        scene = _photograph(str(random.choice(["chelsea", "coffee", "astronaut"])))
        image = cv2.resize(scene, (width, height))
        for _ in range(random.integers(1, 5)):
            side = int(random.integers(80, 300))
            y, x = random.integers(0, height - side), random.integers(0, width - side)
            face = cv2.resize(_photograph("astronaut")[FACE], (side, side))
            image[y : y + side, x : x + side] = face
        found.append(_jpeg(image))
    return found


def pages(turn: int, count: int, lines: int) -> Sequence[bytes]:
    """Return drawn pages of up to so many lines of words, as JPEG files of any size."""
    return [jpeg for _, jpeg in _drawn(turn, count, lines)]


def texts_of_pages(turn: int, count: int, lines: int) -> Sequence[Sequence[str]]:
    """Return the lines that stand on such pages."""
    return [rows for rows, _ in _drawn(turn, count, lines)]


def _drawn(turn: int, count: int, lines: int) -> Iterator[tuple[Sequence[str], bytes]]:
    random, words = np.random.default_rng([turn, count]), WORDS.split()
    font = ImageFont.load_default(26)
    for _ in range(count):
        rows = [
            " ".join(random.choice(words, random.integers(1, 5)))
            for _ in range(random.integers(lines // 2, lines + 1))
        ]
        page = Image.new("RGB", (int(random.integers(736, 900)), 60 + 46 * len(rows)), "white")
        ImageDraw.Draw(page).multiline_text((20, 20), "\n".join(rows), "black", font, spacing=20)
        yield rows, _jpeg(np.asarray(page))


def decode(jpeg: Any) -> Any:
    """Return the pixels of a JPEG file, blue first."""
    return cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)


def fit(image: Any, side: int) -> Any:
    """Return an image shrunk or grown to fit into a square, with black right of it and below."""
    ratio = side / max(image.shape[:2])
    height, width = (max(1, round(length * ratio)) for length in image.shape[:2])
    canvas = np.zeros((side, side, 3), np.uint8)
    canvas[:height, :width] = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    return canvas


def _jpeg(image: Any) -> bytes:
    return cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes()


@cache
def _photograph(name: str) -> Any:
    path = in_package("skimage", "data", f"{name}.png", install="scikit-image")
    return cv2.imread(str(path), cv2.IMREAD_COLOR)
