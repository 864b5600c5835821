"""How fast is attention on tensor cores, beside fewer libraries, and beside PyTorch's?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import plait as pl
from gpu.convolutions import per_call
from gpu.in_torch import Torch, torch_for
from gpu.loaded import floats, loaded
from gpu.question import Row, answer
from gpu.target import Target, Unsuitable
from plait.devices import Device
from plait.graph.core.ir import Graph
from plait.graph.values.dtypes import dtype_of

Floats: TypeAlias = np.ndarray[Any, Any]

COUNT = 4
"""How many are queued at once, as one CUDA graph."""


class Shape(NamedTuple):
    """An attention of as many queries as keys; `rows` says that heads lie side by side in them."""

    title: str
    batch: int
    heads: int
    shared: int
    length: int
    depth: int
    is_causal: bool = False
    rows: bool = False

    @property
    def flops(self) -> int:
        """How many products and sums there are, where all keys are seen."""
        return 4 * self.batch * self.heads * self.length**2 * self.depth

    def small(self) -> Shape:
        """Return one of the kind to try things out with."""
        return self._replace(batch=1, heads=4, shared=min(self.shared, 4), length=9, depth=8)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return those of queries, keys and values."""
        heads = {"q": self.heads, "k": self.shared, "v": self.shared}
        if self.rows:
            return {n: (self.batch, self.length, h * self.depth) for n, h in heads.items()}
        return {n: (self.batch, h, self.length, self.depth) for n, h in heads.items()}


SHAPES = (
    Shape("12 heads of 64, 8 x 128, by row", 8, 12, 12, 128, 64, rows=True),
    Shape("12 heads of 64, 8 x 512, by row", 8, 12, 12, 512, 64, rows=True),
    Shape("12 heads of 64, 1 x 2048", 1, 12, 12, 2048, 64),
    Shape("32 heads of 128 over 8, 1 x 2048, causal", 1, 32, 8, 2048, 128, is_causal=True),
    Shape("16 heads of 64, 1 x 197", 1, 16, 16, 197, 64),
)
KINDS: dict[str, tuple[str, dict[str, Any], float]] = {
    "float16": ("float16", {}, 1e-2),
    "tf32": ("float32", {"tf32": True}, 1e-2),
    "bfloat16": ("bfloat16", {}, 4e-2),
}
"""The dtype, options of the device, and how much results may differ from exact ones."""
WITHOUT = {"by cuBLAS": "cudnn", "one generated kernel": "cublas"}
"""What is left to compute it without a library."""


def attention(shape: Shape, dtype: str) -> Graph:
    """Return a graph of `COUNT` alike that read the same."""
    b = pl.GraphBuilder(shape.title)
    inputs = [b.input(name, dtype, lengths) for name, lengths in shape.shapes().items()]
    heads: dict[str, Any] = {}
    if shape.rows:
        heads = {"q_num_heads": shape.heads, "kv_num_heads": shape.shared}
    for number in range(COUNT):
        scale = shape.depth**-0.5 * (1 + number / 64)  # equal nodes would become one
        made = b.op("Attention", *inputs, is_causal=shape.is_causal, scale=scale, **heads)
        b.output(f"y{number}", made)
    return b.build()


def shapes(target: Target) -> Iterator[Row]:
    """Attention of networks that read text and images."""
    try:
        rival = torch_for(target)
    except Unsuitable:
        rival = None
    for kind, (dtype, options, at_most) in KINDS.items():
        if options and not target.is_cuda:
            continue
        with ExitStack() as stack:
            device = stack.enter_context(target.opened(**options))
            others = {
                title: stack.enter_context(target.opened(**options, **{library: None}))
                for title, library in WITHOUT.items()
                if target.is_cuda
            }
            for shape in SHAPES:
                each, title = shape.small() if target.small else shape, f"{shape.title}, {kind}"
                graph, feeds = attention(each, dtype), fed(each, dtype)
                at_least_s = target.size(0.03, 0.001)
                found, seconds = _by_plait(device, graph, feeds, at_least_s)
                yield Row(f"{title}: plait", seconds * 1e6, "µs")
                yield Row(f"{title}: plait's rate", each.flops / seconds / 1e12, "TFLOP/s")
                for name, other in others.items():
                    _, other_s = _by_plait(other, graph, feeds, at_least_s)
                    yield Row(f"{title}: {name}", other_s * 1e6, "µs")
                if rival is None:
                    continue
                theirs_s, exact = _by_torch(*rival, each, dtype, feeds, at_least_s)
                yield Row(f"{title}: torch", theirs_s * 1e6, "µs")
                yield Row(f"{title}: plait, times as long", seconds / theirs_s, "x")
                error = float(np.abs(found - exact).max() / np.abs(exact).max())
                yield Row(f"{title}: difference to float32", error, at_most=at_most)


def fed(shape: Shape, dtype: str) -> dict[str, Floats]:
    """Return queries, keys and values."""
    lengths = enumerate(shape.shapes().items())
    return {n: floats(*each, seed=seed).astype(dtype_of(dtype)) for seed, (n, each) in lengths}


def _by_plait(
    device: Device, graph: Graph, feeds: dict[str, Floats], at_least_s: float
) -> tuple[Floats, float]:
    with loaded(device, graph) as run:
        found = run.run(feeds)["y0"].astype("float32")
        return found, run.times(at_least_s).total_s / COUNT


def _by_torch(
    torch: Torch,
    device: str,
    shape: Shape,
    dtype: str,
    feeds: dict[str, Floats],
    at_least_s: float,
) -> tuple[float, Floats]:
    """Return its seconds in the dtype, and its results in float32 without tensor cores."""

    def by_head(x: Any) -> Any:
        if not shape.rows:
            return x
        return x.reshape(shape.batch, shape.length, -1, shape.depth).transpose(1, 2)

    with torch.inference_mode():
        wide = [torch.from_numpy(x.astype("float32")).to(device) for x in feeds.values()]
        given = [x.to(getattr(torch, dtype)) for x in wide]

        def attend(inputs: list[Any]) -> Any:
            q, k, v = map(by_head, inputs)
            options = {"is_causal": shape.is_causal, "enable_gqa": shape.heads != shape.shared}
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)
            if not shape.rows:
                return y
            return y.transpose(1, 2).reshape(shape.batch, shape.length, -1)

        exact = attend(wide).cpu().numpy()
        if device == "cpu":
            return per_call(lambda: attend(given), lambda: None, at_least_s), exact
        torch.backends.cuda.matmul.allow_tf32 = True
        graph = torch.cuda.CUDAGraph()
        attend(given)
        with torch.cuda.graph(graph):
            for _ in range(COUNT):
                attend(given)
        seconds = per_call(graph.replay, torch.cuda.synchronize, at_least_s) / COUNT
        torch.backends.cuda.matmul.allow_tf32 = False
        return seconds, exact


if __name__ == "__main__":
    answer(shapes)
