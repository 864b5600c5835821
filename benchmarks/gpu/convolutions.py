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
from plait.graph.ir import Graph

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


def convolution(shape: Shape) -> tuple[Graph, Floats]:
    """Return a graph, and its weights."""
    kernel = (shape.kernel, shape.kernel)
    weights = floats(shape.made, shape.channels // shape.group, *kernel)
    b = pl.GraphBuilder(shape.title)
    x = b.input("x", "float32", (shape.batch, shape.channels, shape.side, shape.side))
    pads, strides = (shape.kernel // 2,) * 4, (shape.stride,) * 2
    made = b.op("Conv", x, b.constant(weights), pads=pads, strides=strides, group=shape.group)
    b.output("y", made)
    return b.build(), weights


def shapes(target: Target) -> Iterator[Row]:
    """Convolutions of image networks, in float32."""
    rival = _rival(target)
    for shape in SHAPES:
        each = shape.small() if target.small else shape
        graph, weights = convolution(each)
        x = floats(each.batch, each.channels, each.side, each.side)
        with target.opened() as device, loaded(device, graph) as run:
            found = run.run({"x": x})["y"]
            seconds = run.times(target.size(0.2, 0.001)).total_s
        yield Row(f"{shape.title}: plait", seconds * 1e6, "µs")
        yield Row(f"{shape.title}: plait's rate", each.flops / seconds / 1e12, "TFLOP/s")
        if rival is None:
            continue
        theirs_s, theirs = _by_torch(*rival, each, x, weights, target.size(0.2, 0.001))
        yield Row(f"{shape.title}: torch", theirs_s * 1e6, "µs")
        yield Row(f"{shape.title}: plait, times as long", seconds / theirs_s, "x")
        error = float(np.abs(found - theirs).max() / np.abs(theirs).max())
        yield Row(f"{shape.title}: difference to torch", error, at_most=1e-4)


def _rival(target: Target) -> tuple[Torch, str] | None:
    try:
        return torch_for(target)
    except Unsuitable:
        return None


def _by_torch(
    torch: Torch, device: str, shape: Shape, x: object, weights: object, at_least_s: float
) -> tuple[float, Floats]:
    with torch.inference_mode():
        torch.backends.cudnn.benchmark = True
        there, factors = (torch.from_numpy(each).to(device) for each in (x, weights))

        def convolve() -> Any:
            return torch.nn.functional.conv2d(
                there, factors, None, shape.stride, shape.kernel // 2, 1, shape.group
            )

        wait = (lambda: None) if device == "cpu" else torch.cuda.synchronize
        return _per_call(convolve, wait, at_least_s), convolve().cpu().numpy()


def _per_call(call: Callable[[], object], wait: Callable[[], object], at_least_s: float) -> float:
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
