"""Models of the public pipelines: from packages, or small networks of the same kind made here."""

from __future__ import annotations

import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import plait as pl

VOCABULARY, TOKENS, WIDTH = 2_000, 64, 128
"""Sizes of the text encoder: known tokens, tokens of a chunk, features of a token."""
MELS, FRAMES, LETTERS = 80, 200, 28
"""Sizes of the speech model: bands of the spectrum, frames, letters with a blank."""


@cache
def find_model(package: str, *parts: str) -> Path:
    """Return the path of a model in an installed package."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"pip install {package}")
    return Path(spec.origin).parent.joinpath(*parts)


def find_detector() -> Path:
    """Return PP-OCR's detector of text, float32[n, 3, height, width] to a map of scores."""
    return find_model("rapidocr_onnxruntime", "models", "ch_PP-OCRv4_det_infer.onnx")


def find_recognizer() -> Path:
    """Return PP-OCR's recognizer of lines, float32[n, 3, 48, width]."""
    return find_model("rapidocr_onnxruntime", "models", "ch_PP-OCRv4_rec_infer.onnx")


def find_classifier() -> Path:
    """Return PP-OCR's classifier, float32[n, 3, 48, 192] to two scores."""
    return find_model("rapidocr_onnxruntime", "models", "ch_ppocr_mobile_v2.0_cls_infer.onnx")


def find_file_model() -> Path:
    """Return magika's classifier of files, int32[n, 2048]."""
    return find_model("magika", "models", "standard_v3_3", "model.onnx")


@cache
def make_encoder() -> Path:
    """Write a text encoder with one block of attention, int64[n, tokens] to float32[n, width]."""
    rng = np.random.default_rng(0)
    b = pl.GraphBuilder("encoder")
    tokens = b.input("tokens", "int64", ("n", TOKENS))
    table = b.constant(_draw(rng, VOCABULARY, WIDTH))
    x = b.op("Gather", table, tokens)
    for _ in range(2):
        query, key, value = (x @ _draw(rng, WIDTH, WIDTH) for _ in range(3))
        scores = (query @ key.transpose(0, 2, 1)) * (WIDTH**-0.5)
        x = x + scores.softmax(axis=-1) @ value
        x = x + (x @ _draw(rng, WIDTH, 4 * WIDTH)).relu() @ _draw(rng, 4 * WIDTH, WIDTH)
    b.output("vector", x.mean(axis=1))
    return _save(b)


@cache
def make_speech_model() -> Path:
    """Write a network of speech, float32[1, mels, frames] to scores of letters for each frame."""
    rng = np.random.default_rng(1)
    b = pl.GraphBuilder("speech")
    x = b.input("mels", "float32", (1, MELS, FRAMES))
    for width in (96, 96, 96, 96):
        kernel = _draw(rng, width, int(x.shape[1]), 5)
        x = b.op("Conv", x, kernel, pads=[2, 2]).relu()
    b.output("letters", b.op("Conv", x, _draw(rng, LETTERS, 96, 1)))
    return _save(b)


@cache
def make_segmenter(side: int) -> Path:
    """Write a network that separates a person from the background, for square images."""
    rng = np.random.default_rng(2)
    b = pl.GraphBuilder("segmenter")
    x = b.input("pixels", "float32", (1, 3, side, side))
    for width in (16, 24, 24):
        x = b.op("Conv", x, _draw(rng, width, int(x.shape[1]), 3, 3), pads=[1] * 4).relu()
    b.output("mask", b.op("Conv", x, _draw(rng, 1, 24, 1, 1)).sigmoid())
    return _save(b)


@cache
def make_scorer() -> Path:
    """Write a network of two layers over rows of a table, float32[n, 256] to float32[n, 8]."""
    rng = np.random.default_rng(3)
    b = pl.GraphBuilder("scorer")
    x = b.input("row", "float32", ("n", 256))
    b.output("scores", ((x @ _draw(rng, 256, 512)).relu() @ _draw(rng, 512, 8)).softmax())
    return _save(b)


def _draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) * (2 / np.prod(shape[1:] or shape)) ** 0.5).astype("float32")


def _save(b: pl.GraphBuilder) -> Path:
    path = Path(tempfile.mkdtemp(prefix="plait-bench-")) / f"{b.name}.onnx"
    pl.save(b.build(), path)
    return path
