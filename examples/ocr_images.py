"""Images to text and back to numbers: what lies between the networks of a reader of text.

The networks are those of PP-OCR as they come with rapidocr-onnxruntime 1.4.4, and the rules and
thresholds are that package's, so that both read the same. Boxes are found as differentiable
binarization has it (Liao et al. 2020, arXiv:1911.08947): threshold, outline, then grow.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from math import ceil
from typing import IO, Any, NamedTuple, TypeAlias

import cv2
import numpy as np
import plait as pl
import pyclipper
from PIL import Image

Pixels: TypeAlias = Any
"""An array, (height, width, 3), uint8, blue first."""
Floats: TypeAlias = Any
"""An array of float32."""
Points: TypeAlias = Any
"""An array, (..., 4, 2): x and y of the corners of boxes, clockwise from the upper left."""

SHORTEST, LONGEST = 30, 2000
"""Images with a shorter or longer side than these are resized."""
WIDEST = 8
"""Images that are more times wider than high get a border above and below."""
MOST_BOXES = 1000
TEXT_ABOVE, BOX_ABOVE = 0.3, 0.5
"""Probabilities: of a pixel that is text, and on average of a box that holds some."""
GROWTH = 1.6
LINE_HEIGHT = 48
DIRECTION_WIDTH = 192
READING_WIDTH = 320
"""Lines are read as pixels of this width, or more if they are longer."""
READ_ALIKE = 6
"""So many lines, next to each other in length, are read as pixels of one width."""


class Page(NamedTuple):
    """An image as it is cut into lines, and as it is looked for them.

    Attributes
    ----------
    image : Pixels
    fitted : Pixels
        The same, in a size that the network takes.
    border : int
        What was added above and below.
    limits : tuple of int
        Width and height of the image in the file.
    """

    image: Pixels
    fitted: Pixels
    border: int
    limits: tuple[int, int]

    @property
    def size(self) -> Points:
        """Height and width of the image."""
        return np.array(self.image.shape[:2], np.int32)

    def original(self, boxes: Points) -> Points:
        """Return boxes as they lie in the file's image."""
        height, width = self.image.shape[:2]
        scale = np.divide(self.limits, (width, height - 2 * self.border))
        moved = ((boxes - (0, self.border)) * scale).round()
        return moved.clip(0, self.limits).astype(np.int32)


class Batch(NamedTuple):
    """Lines of about the same width: which of a page's, and their pixels, (n, 3, 48, width)."""

    lines: tuple[int, ...]
    pixels: Floats


def load(path: str | os.PathLike[str] | IO[bytes], side: int) -> Page:
    """Read an image file; text is looked for in it with its shorter side at least this long."""
    with Image.open(path) as file:
        pixels = np.ascontiguousarray(np.asarray(file.convert("RGB"))[..., ::-1])
    height, width = pixels.shape[:2]
    image, border = _framed(_of_usual_size(pixels))
    ratio = max(1.0, side / min(image.shape[:2]))
    return Page(image, _resized(image, ratio), border, (width, height))


def _of_usual_size(image: Pixels) -> Pixels:
    sides = image.shape[:2]
    if max(sides) > LONGEST:
        image = _resized(image, LONGEST / max(sides))
    if min(image.shape[:2]) < SHORTEST:
        image = _resized(image, SHORTEST / min(image.shape[:2]))
    return image


def _framed(image: Pixels) -> tuple[Pixels, int]:
    height, width = image.shape[:2]
    if height > SHORTEST and width / height <= WIDEST:
        return image, 0
    border = abs(2 * max(int(width / WIDEST), SHORTEST) - height) // 2
    return cv2.copyMakeBorder(image, border, border, 0, 0, cv2.BORDER_CONSTANT), border


def _resized(image: Pixels, ratio: float) -> Pixels:
    """Return an image whose sides are multiples of 32, as the network that finds boxes wants it."""
    height, width = (32 * round(int(side * ratio) / 32) for side in image.shape[:2])
    return cv2.resize(image, (width, height))


@pl.operator(
    (pl.TensorSpec("int32", (MOST_BOXES, 4, 2)), pl.TensorSpec("int32", (1,))),
    inputs=(pl.TensorSpec("float32", (1, 1, "height", "width")), pl.TensorSpec("int32", (2,))),
    name="ocr.find_boxes",
)
def find_boxes(probability: Floats, size: Points) -> tuple[Points, Points]:
    """Return the boxes of text in an image of a size, in the order of reading, and their number."""
    found = in_reading_order(list(_boxes(probability[0, 0], *size.tolist())))
    boxes = np.zeros((MOST_BOXES, 4, 2), np.int32)
    boxes[: len(found)] = found or 0
    return boxes, np.array([len(found)], np.int32)


def _boxes(probability: Floats, height: int, width: int) -> Iterator[Points]:
    mask = (probability > TEXT_ABOVE).astype(np.uint8)
    mask = cv2.dilate(mask, np.ones((2, 2), np.uint8))
    outlines, _ = cv2.findContours(mask, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    scale = np.divide((width, height), probability.shape[::-1])
    for outline in outlines[:MOST_BOXES]:
        box = cv2.minAreaRect(outline)
        if min(box[1]) < 3 or _mean_within(probability, clockwise(cv2.boxPoints(box))) < BOX_ABOVE:
            continue
        grown = cv2.minAreaRect(_grown(clockwise(cv2.boxPoints(box))))
        if min(grown[1]) < 5:
            continue
        corners = clockwise((clockwise(cv2.boxPoints(grown)) * scale).round())
        corners = corners.clip(0, (width - 1, height - 1)).astype(np.int32)
        if min(_sides(corners)) > 3:
            yield corners


def clockwise(corners: Points) -> Points:
    """Return the corners of a box, beginning at the upper left."""
    by_x = sorted(corners, key=lambda corner: corner[0])
    (top_left, bottom_left), (top_right, bottom_right) = (
        sorted(pair, key=lambda corner: corner[1]) for pair in (by_x[:2], by_x[2:])
    )
    return np.array([top_left, top_right, bottom_right, bottom_left])


def _mean_within(probability: Floats, corners: Floats) -> float:
    limits = np.array(probability.shape[::-1]) - 1
    low = np.floor(corners.min(0)).astype(int).clip(0, limits)
    high = np.ceil(corners.max(0)).astype(int).clip(0, limits)
    part = probability[low[1] : high[1] + 1, low[0] : high[0] + 1]
    mask = np.zeros(part.shape, np.uint8)
    cv2.fillPoly(mask, [(corners - low).astype(np.int32)], 1)
    return float(cv2.mean(part, mask)[0])


def _grown(corners: Floats) -> Points:
    """Return the outline at a distance from a box: area times growth over perimeter."""
    distance = cv2.contourArea(corners) * GROWTH / cv2.arcLength(corners, closed=True)
    offset = pyclipper.PyclipperOffset()
    offset.AddPath(corners, pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
    return np.array(offset.Execute(distance)[0])


def _sides(corners: Points) -> tuple[int, int]:
    """Return a box's width and height in whole pixels, along its upper and left side."""
    top_left, top_right, _, bottom_left = corners
    return int(np.linalg.norm(top_right - top_left)), int(np.linalg.norm(bottom_left - top_left))


def in_reading_order(boxes: Sequence[Points]) -> list[Points]:
    """Return boxes from top to bottom, and from left to right where they begin at one height."""
    ordered: list[Points] = []
    for box in sorted(boxes, key=lambda box: (box[0, 1], box[0, 0])):
        place = len(ordered)
        while place and _is_left_of(box[0], ordered[place - 1][0]):
            place -= 1
        ordered.insert(place, box)
    return ordered


def _is_left_of(corner: Points, other: Points) -> bool:
    return abs(int(other[1]) - int(corner[1])) < 10 and bool(corner[0] < other[0])


def crop(image: Pixels, boxes: Points) -> list[Pixels]:
    """Return what is in boxes, straight; what is far higher than wide is laid on its side."""
    return [_straight(image, box.astype(np.float32)) for box in boxes]


def _straight(image: Pixels, corners: Floats) -> Pixels:
    following = np.linalg.norm(corners - np.roll(corners, -1, 0), axis=1)
    width, height = int(max(following[::2])), int(max(following[1::2]))
    target = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    line = cv2.warpPerspective(
        image,
        cv2.getPerspectiveTransform(corners, target),
        (width, height),
        flags=cv2.INTER_CUBIC,
        borderMode=cv2.BORDER_REPLICATE,
    )
    return np.rot90(line) if height / width >= 1.5 else line


def turned(line: Pixels) -> Pixels:
    """Return a line that stood on its head on its feet."""
    return cv2.rotate(line, cv2.ROTATE_180)


def for_direction(lines: Sequence[Pixels], sizes: Sequence[int]) -> Iterator[Batch]:
    """Yield lines in the one width that the network of directions knows."""
    return _batches([DIRECTION_WIDTH] * len(lines), lines, sizes)


def for_reading(
    lines: Sequence[Pixels], sizes: Sequence[int], step: int, alike: int = READ_ALIKE
) -> Iterator[Batch]:
    """Yield lines in widths that are multiples of a step; a step of 1 is what rapidocr does.

    The longer the step, the fewer are the shapes that the network is planned for; but what stands
    behind a line has some influence on how it is read. So many lines are read `alike`.
    """
    ratios = [line.shape[1] / line.shape[0] for line in lines]
    by_length = sorted(range(len(lines)), key=ratios.__getitem__)
    widths = [0] * len(lines)
    for first in range(0, len(lines), alike):
        group = by_length[first : first + alike]
        width = max(READING_WIDTH, int(LINE_HEIGHT * ratios[group[-1]]))
        for index in group:
            widths[index] = ceil(width / step) * step
    return _batches(widths, lines, sizes)


def _batches(
    widths: Sequence[int], lines: Sequence[Pixels], sizes: Sequence[int]
) -> Iterator[Batch]:
    """Yield lines of the same width together, in the largest of some numbers that there are."""
    for width in sorted(set(widths)):
        rest = tuple(index for index, own in enumerate(widths) if own == width)
        for size in sorted(sizes, reverse=True):
            while len(rest) >= size:
                now, rest = rest[:size], rest[size:]
                yield Batch(now, np.stack([_normalized(lines[index], width) for index in now]))


def _normalized(line: Pixels, width: int) -> Floats:
    """Return a line as high as all, between -1 and 1, and zeros behind it."""
    own = min(width, ceil(LINE_HEIGHT * (line.shape[1] / line.shape[0])))
    pixels = np.zeros((3, LINE_HEIGHT, width), np.float32)
    resized = cv2.resize(line, (own, LINE_HEIGHT)).astype(np.float32)
    pixels[:, :, :own] = (resized / 255 - 0.5).transpose(2, 0, 1) / 0.5
    return pixels


def text_of(best: Floats, probability: Floats, alphabet: Sequence[str]) -> tuple[str, float]:
    """Return the text in a network's best guesses along a line, and how sure it is (CTC).

    Repetitions of a guess are one character, guess 0 stands between characters.
    """
    begins = np.append(True, best[1:] != best[:-1]) & (best != 0)
    text = "".join(alphabet[index] for index in best[begins])
    return text, float(probability[begins].mean()) if text else 0.0
