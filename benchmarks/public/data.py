"""Generated items: images, pages, video frames, sounds, texts, records and files."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np

WORDS = [f"word{number}" for number in range(800)]


def make_jpegs(seed: int, count: int = 96) -> list[bytes]:
    """Return photographs of noise and shapes, as JPEG files of many sizes."""
    rng = np.random.default_rng(seed)
    return [_to_jpeg(_draw_scene(rng, *rng.integers(240, 720, 2).tolist())) for _ in range(count)]


def make_pages(seed: int, count: int = 16) -> list[bytes]:
    """Return pages with some lines of text, as JPEG files."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(count):
        page = np.full((480, 800, 3), 255, np.uint8)
        for line in range(int(rng.integers(2, 7))):
            text = " ".join(rng.choice(WORDS, 3))
            at = (30, 60 + 64 * line)
            cv2.putText(page, text, at, cv2.FONT_HERSHEY_SIMPLEX, 1.1, (0, 0, 0), 2, cv2.LINE_AA)
        found.append(_to_jpeg(page))
    return found


def make_frames(seed: int, count: int = 48) -> list[Any]:
    """Return frames of a video in which signs move, uint8[384, 640, 3]."""
    rng = np.random.default_rng(seed)
    back = _draw_scene(rng, 384, 640) // 2
    starts, steps = rng.integers(40, 300, (4, 2)), rng.integers(-3, 4, (4, 2))
    frames = []
    for number in range(count):
        frame = back.copy()
        for sign, (start, step) in enumerate(zip(starts, steps, strict=True)):
            x, y = (start + number * step).tolist()
            cv2.rectangle(frame, (x, y), (x + 150, y + 44), (255, 255, 255), -1)
            at = (x + 8, y + 32)
            cv2.putText(frame, f"SIGN {sign}", at, cv2.FONT_HERSHEY_SIMPLEX, 1, (0, 0, 0), 2)
        frames.append(frame)
    return frames


def make_sounds(seed: int, count: int = 96) -> list[Any]:
    """Return sounds of two seconds at 16 kHz, float64."""
    rng = np.random.default_rng(seed)
    seconds = np.arange(32_240) / 16_000
    return [
        sum(np.sin(2 * np.pi * pitch * seconds) for pitch in rng.integers(100, 3000, 4))
        for _ in range(count)
    ]


def make_chunks(seed: int) -> list[Any]:
    """Return sounds of 80 ms at 16 kHz, in order."""
    return list(np.concatenate(make_sounds(seed, 4)[:4])[: 96 * 1280].reshape(96, 1280))


def make_texts(seed: int, count: int = 48) -> list[str]:
    """Return documents of 60 to 700 words."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(60, 700))) for _ in range(count)]


def make_records(seed: int, count: int = 2_000) -> list[dict[str, Any]]:
    """Return rows of a table as mappings."""
    rows = np.random.default_rng(seed).standard_normal((count, 256)).astype("float32")
    return [{"key": number, "features": row} for number, row in enumerate(rows)]


def make_files(seed: int, count: int = 64) -> list[bytes]:
    """Return contents of files: text, JSON, bytes."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        text = " ".join(rng.choice(WORDS, int(rng.integers(50, 900))))
        content = text.encode() if number % 2 else rng.bytes(int(rng.integers(300, 9000)))
        made.append(content)
    return made


def _draw_scene(rng: np.random.Generator, height: int, width: int) -> Any:
    coarse = rng.integers(0, 256, (height // 16 + 1, width // 16 + 1, 3), np.uint8)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)


def _to_jpeg(image: Any) -> bytes:
    return cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes()
