"""Convolutions through cuDNN, against the `cpu` device; the library checks what it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from cupy_double import CupyDouble
from fake_cudnn import FakeCudnn
from plait.devices.cuda.convolutions import convolution_of
from plait.devices.cuda.cudnn import find_cudnn
from plait.graph.ir import Graph
from plait.graph.tensor import Array

from .rig import Rig
from .test_cuda_cublas import brief, graph_of, half, numbers

Make = Callable[[pl.GraphBuilder, str], str]


def conv(*weights: Array, **attributes: Any) -> Make:
    """Return what makes a convolution by weights, and a bias if there is one."""
    return lambda b, x: b.op("Conv", x, *weights, **attributes)


IMAGE = half(2, 4, 7, 6)
CONVOLUTIONS: dict[str, tuple[Array, Make]] = {
    "halves": (IMAGE, conv(half(5, 4, 3, 3))),
    "bfloat16": (brief(2, 4, 7, 6), conv(brief(5, 4, 3, 3))),
    "padded": (IMAGE, conv(half(5, 4, 3, 3), pads=[1] * 4)),
    "padded at one end": (IMAGE, conv(half(5, 4, 3, 3), pads=[1, 0, 0, 2])),
    "padded to the same": (IMAGE, conv(half(5, 4, 3, 3), auto_pad="SAME_LOWER")),
    "strided": (IMAGE, conv(half(5, 4, 3, 2), strides=[2, 3], pads=[1, 0, 1, 0])),
    "dilated": (IMAGE, conv(half(5, 4, 3, 2), dilations=[2, 1])),
    "grouped": (IMAGE, conv(half(6, 2, 3, 3), group=2)),
    "with a bias": (IMAGE, conv(half(5, 4, 3, 3), half(5))),
    "lines": (half(2, 3, 9), conv(half(4, 3, 4), half(4), pads=[2, 1], strides=[2])),
    "solids": (half(1, 2, 5, 4, 3), conv(half(3, 2, 2, 2, 2), pads=[1] * 6)),
}


def with_cudnn(double: CupyDouble, library: FakeCudnn, **options: Any) -> Any:
    return double.generating(cudnn=lambda: library, **options)


def computed(graph: Graph, x: Array, device: Any = None) -> Array:
    with Rig(device or pl.devices.find("cpu"), graph) as rig:
        return rig.run({"x": x})["y"]


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nothing measured."""
    monkeypatch.setenv("PLAIT_FIGURES", "off")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return where choices are kept."""
    monkeypatch.setenv("PLAIT_KERNEL_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_is_right(double: CupyDouble, name: str) -> None:
    x, make = CONVOLUTIONS[name]
    graph, library = graph_of(x, make), FakeCudnn(double.gpu)
    found = computed(graph, x, with_cudnn(double, library))
    np.testing.assert_array_equal(found, computed(graph, x))
    assert library.calls > 0
    assert library.open == 0
