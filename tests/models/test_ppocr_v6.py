"""Finding and reading text, PP-OCRv6: ONNX Runtime's numbers, on noise and on drawn words."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import plait as pl
import pytest
from onnx_models import by_runtime
from plait.graph.formats.onnx import read_model
from plait.graph.values.tensor import Array

pytestmark = pytest.mark.slow

TOLERANCE = 1e-4
DETECTION, RECOGNITION = "PP-OCRv6_det_small", "PP-OCRv6_rec_small"
SIZES = {
    DETECTION: [(1, 32, 32), (1, 96, 160), (2, 64, 96), (8, 32, 64)],
    RECOGNITION: [(1, 48, 48), (1, 48, 331), (8, 48, 96)],
}
CASES = [(name, size) for name, sizes in SIZES.items() for size in sizes]
GLYPHS = {
    "A": ("01110", "10001", "10001", "11111", "10001", "10001", "10001"),
    "I": ("01110", "00100", "00100", "00100", "00100", "00100", "01110"),
    "L": ("10000", "10000", "10000", "10000", "10000", "10000", "11111"),
    "P": ("11110", "10001", "10001", "11110", "10000", "10000", "10000"),
    "T": ("11111", "00100", "00100", "00100", "00100", "00100", "00100"),
}


def model(name: str) -> Path:
    spec = find_spec("rapidocr")
    if spec is None or spec.origin is None:
        pytest.skip("pip install --no-deps rapidocr==3.10.0")
    return Path(spec.origin).parent / "models" / f"{name}.onnx"


def word(text: str, height: int, width: int) -> Array:
    """Return a picture of a word, dark on bright, in letters of seven rows of squares."""
    pixels = np.zeros((9, 6 * len(text) + 1))
    for index, letter in enumerate(text):
        bits = [[int(bit) for bit in row] for row in GLYPHS[letter]]
        pixels[1:8, 6 * index + 1 : 6 * index + 6] = bits
    scale = height // 9
    drawn = pixels.repeat(scale, 0).repeat(scale, 1)
    picture = np.full((height, width), 0.8, np.float32)
    top = (height - len(drawn)) // 2
    picture[top : top + len(drawn), : drawn.shape[1]] -= 1.6 * drawn[:, :width]
    return np.broadcast_to(picture, (1, 3, height, width)).copy()


def noise(size: tuple[int, int, int]) -> Array:
    batch, height, width = size
    return np.random.default_rng(0).standard_normal((batch, 3, height, width), np.float32)


def with_scores(name: str) -> Any:
    """Return a model that puts out its scores too: what the last operator makes probabilities of.

    Where nothing is to be seen all probabilities are faint, and the reference rounds them away.
    """
    proto = onnx.load(model(name))
    (last,) = (node for node in proto.graph.node if node.output[0] == proto.graph.output[0].name)
    proto.graph.output.append(onnx.ValueInfoProto(name=last.input[0]))
    return proto


def check(name: str, x: Array, devices: Sequence[str] = ("cpu",), cut: bool = False) -> Array:
    """Return the model's probabilities, which with its scores are those of ONNX Runtime."""
    proto = with_scores(name)
    graph = read_model(proto, name)
    pins = thirds(graph) if cut else {}
    mine = pl.run(pl.plan(graph, devices, pin=pins), {"x": x})
    for theirs, output in zip(by_runtime(proto, {"x": x}), graph.outputs, strict=True):
        scale = max(1, np.abs(theirs).max())
        np.testing.assert_allclose(mine[output], theirs, rtol=0, atol=TOLERANCE * scale)
    return mine[graph.outputs[0]]


def thirds(graph: pl.Graph) -> dict[str, str]:
    names = [node.name for node in graph.nodes]
    return dict.fromkeys(names[len(names) // 3 : 2 * len(names) // 3], "worker:0")


@pytest.mark.parametrize(("name", "size"), CASES)
def test_noise_of_any_size_gives_the_reference_results(
    name: str, size: tuple[int, int, int]
) -> None:
    check(name, noise(size))


@pytest.mark.parametrize("name", SIZES)
def test_a_split_network_gives_the_reference_results(name: str) -> None:
    x = np.concatenate([word("PLAIT", 64 if name == DETECTION else 48, 256)] * 2)
    check(name, x, ["cpu", "worker:0"], cut=True)


def test_a_word_is_found_where_it_was_drawn() -> None:
    picture = np.full((1, 3, 128, 320), 0.8, np.float32)
    picture[:, :, 40:85, 60:240] = word("PLAIT", 45, 180)
    (found,) = check(DETECTION, picture)[0]
    rows, columns = np.nonzero(found > 0.5)
    assert 40 <= rows.min() < rows.max() < 85
    assert 60 <= columns.min() < columns.max() < 240
    assert np.ptp(columns) > 100


def test_a_word_is_read() -> None:
    (letters,) = (
        entry.value.splitlines()
        for entry in with_scores(RECOGNITION).metadata_props
        if entry.key == "character"
    )
    scores = check(RECOGNITION, word("PLAIT", 48, 200))
    best = [index for index, _ in groupby(scores[0].argmax(1).tolist()) if index > 0]
    assert "".join(letters[index - 1] for index in best) == "PLAIT"
