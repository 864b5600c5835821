"""How fast are convolutions, beside those of cuDNN that PyTorch calls?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import plait as pl
from gpu.in_torch import Torch, torch_for
from gpu.loaded import floats, loaded
from gpu.question import Row, answer
from gpu.target import Target, Unsuitable
from plait.graph.core.ir import Graph

Floats: TypeAlias = np.ndarray[Any, Any]


class Shape(NamedTuple):
    """A convolution: of `channels` to `made`, windows of `kernel` cells at a side."""

    title: str
    batch: int
    channels: int
    made: int
    side: int
    kernel: int
    stride: int = 1
    group: int = 1

    @property
    def flops(self) -> int:
        """How many products and sums there are."""
        out = -(-self.side // self.stride)
        window = self.channels // self.group * self.kernel**2
        return 2 * self.batch * self.made * out**2 * window

    def small(self) -> Shape:
        """Return one of the kind to try things out with."""
        group = 4 if self.group > 1 else 1
        return self._replace(batch=1, channels=4, made=4, side=8, group=group)


SHAPES = (
    Shape("7x7 of a photo", 8, 3, 64, 224, 7, stride=2),
    Shape("1x1, wide", 8, 64, 256, 56, 1),
    Shape("3x3, large", 8, 64, 64, 56, 3),
    Shape("3x3, deep", 8, 512, 512, 7, 3),
    Shape("3x3, one channel each", 8, 144, 144, 56, 3, group=144),
    Shape("3x3, batch of one", 1, 256, 256, 14, 3),
)


COUNT = 8
"""How many are queued at once, as one CUDA graph: alone, the host would be what takes time."""

KINDS: dict[str, tuple[str, dict[str, Any], float]] = {
    "float16": ("float16", {}, 1e-2),
    "tf32": ("float32", {"tf32": True}, 1e-2),
    "float32": ("float32", {}, 1e-4),
}
"""The dtype, options of the device, and how much results may differ from PyTorch's."""


def convolutions(shape: Shape, dtype: str) -> tuple[Graph, Floats]:
    """Return a graph of `COUNT` alike that read the same, and their weights."""
    kernel = (shape.kernel, shape.kernel)
    weights = floats(shape.made, shape.channels // shape.group, *kernel).astype(dtype)
    b = pl.GraphBuilder(shape.title)
    x = b.input("x", dtype, (shape.batch, shape.channels, shape.side, shape.side))
    pads, strides = (shape.kernel // 2,) * 4, (shape.stride,) * 2
    for number in range(COUNT):
        w = b.constant(weights + np.asarray(number, dtype))  # equal nodes would become one
        made = b.op("Conv", x, w, pads=pads, strides=strides, group=shape.group)
        b.output(f"y{number}", made)
    return b.build(), weights


def shapes(target: Target) -> Iterator[Row]:
    """Convolutions of image networks."""
    rival = _rival(target)
    for kind, (dtype, options, at_most) in KINDS.items():
        if options and not target.is_cuda:
            continue
        with target.opened(**options) as device:
            for shape in SHAPES:
                title = f"{shape.title}, {kind}"
                each = shape.small() if target.small else shape
                graph, weights = convolutions(each, dtype)
                x = floats(each.batch, each.channels, each.side, each.side).astype(dtype)
                with loaded(device, graph) as run:
                    found = run.run({"x": x})["y0"]
                    seconds = run.times(target.size(0.03, 0.001)).total_s / COUNT
                yield Row(f"{title}: plait", seconds * 1e6, "µs")
                yield Row(f"{title}: plait's rate", each.flops / seconds / 1e12, "TFLOP/s")
                if rival is None:
                    continue
                rounds = bool(options), target.size(0.03, 0.001)
                theirs_s, theirs = _by_torch(*rival, each, x, weights, *rounds)
                yield Row(f"{title}: torch", theirs_s * 1e6, "µs")
                yield Row(f"{title}: plait, times as long", seconds / theirs_s, "x")
                error = float(np.abs(found - theirs).max() / np.abs(theirs).max())
                yield Row(f"{title}: difference to torch", error, at_most=at_most)


def _rival(target: Target) -> tuple[Torch, str] | None:
    try:
        return torch_for(target)
    except Unsuitable:
        return None


def _by_torch(
    torch: Torch,
    device: str,
    shape: Shape,
    x: object,
    weights: object,
    tf32: bool,
    at_least_s: float,
) -> tuple[float, Floats]:
    with torch.inference_mode():
        torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, tf32
        there, factors = (torch.from_numpy(each).to(device) for each in (x, weights))

        def convolve() -> Any:
            return torch.nn.functional.conv2d(
                there, factors, None, shape.stride, shape.kernel // 2, 1, shape.group
            )

        result = convolve().cpu().numpy()
        if device == "cpu":
            return per_call(convolve, lambda: None, at_least_s), result
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(COUNT):
                convolve()
        return per_call(graph.replay, torch.cuda.synchronize, at_least_s) / COUNT, result


def per_call(call: Callable[[], object], wait: Callable[[], object], at_least_s: float) -> float:
    """Return the seconds of a call, as the median of five rounds that take as long together."""
    spent = []
    call()
    wait()
    start = time.perf_counter()
    call()
    wait()
    count = min(1000, max(1, int(at_least_s / 5 / (time.perf_counter() - start))))
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(count):
            call()
        wait()
        spent.append((time.perf_counter() - start) / count)
    return float(np.median(spent))


if __name__ == "__main__":
    answer(shapes)
