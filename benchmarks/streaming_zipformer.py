"""A streaming Zipformer for CTC with made-up weights, as sherpa-onnx expects a `zipformer2_ctc`.

Sizes are those of icefall's small streaming Zipformer: 22 million weights in six stacks, of which
four work at lower rates; chunks of 0.32 s (45 frames of 80 bands, of which 13 come again), and
1.28 to 2.56 s of attention to the past. Axis N has a row for each stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np
import plait as pl
from plait.graph.values.tensor import Array

BANDS, CHUNK, SHIFT, WORDS = 80, 45, 32, 500
"""Bands of a frame, frames of a chunk, frames from chunk to chunk, and tokens with the blank."""
LEFT, STEPS = 128, 16
"""Steps of 20 ms: how many attention looks back, and how many a chunk has."""


class Stack:
    """Sizes of layers that work at one rate."""

    def __init__(self, factor: int, width: int, hidden: int, heads: int, kernel: int) -> None:
        self.factor, self.width, self.hidden = factor, width, hidden
        self.heads, self.kernel = heads, kernel
        self.steps, self.left = STEPS // factor, LEFT // factor

    def list_states(self, layer: int) -> dict[str, tuple[int | str, ...]]:
        """Return the shapes of a layer's states, in the order that sherpa-onnx wants."""
        key, value = ((self.left, "N", self.heads * each) for each in (QUERY, VALUE))
        nonlin = 1, "N", self.left, 3 * self.width // 4
        conv = "N", self.width, self.kernel // 2
        names = "key", "nonlin_attn", "val1", "val2", "conv1", "conv2"
        shapes: list[tuple[int | str, ...]] = [key, nonlin, value, value, conv, conv]
        return {f"cached_{n}_{layer}": shape for n, shape in zip(names, shapes, strict=True)}


QUERY, VALUE, PLACE = 32, 12, 4
"""Features of a head."""
STACKS = (
    Stack(1, 192, 512, 4, 31),
    Stack(2, 256, 768, 4, 31),
    Stack(4, 256, 768, 4, 15),
    Stack(8, 256, 768, 8, 15),
    Stack(4, 256, 768, 4, 15),
    Stack(2, 256, 768, 4, 31),
)
TINY = (Stack(2, 32, 32, 2, 7),)


class Network:
    """The builder of the network, with its random weights."""

    def __init__(self, stacks: Sequence[Stack], layers: int) -> None:
        self.b = pl.GraphBuilder("zipformer")
        self.random = np.random.default_rng(0)
        self.stacks, self.layers = stacks, layers
        self.following: dict[str, pl.Tensor] = {}

    def draw(self, *shape: int, before: int = 10_000) -> Array:
        return self.random.normal(0, before**-0.5, shape).astype("float32")

    def draw_weights(self, before: int, after: int) -> Array:
        """Return weights with a sum of 0 for each output, so that tokens vary with the sound."""
        found = self.draw(before, after, before=before)
        return found - found.mean(0)

    def draw_kernel(self, *shape: int) -> Array:
        return self.draw_weights(prod(shape[1:]), shape[0]).T.reshape(shape)

    def apply_linear(self, x: pl.Tensor, after: int) -> pl.Tensor:
        found: pl.Tensor = x @ self.draw_weights(int(x.shape[-1]), after) + self.draw(after)
        return found

    def swoosh(self, x: pl.Tensor, start: int) -> pl.Tensor:
        """Apply the activation of the Zipformer; `start` is 1 or 4."""
        found: pl.Tensor = ((x - start).exp() + 1).log() - x * 0.08
        return found - {1: 0.313261687, 4: 0.035}[start]

    def normalize(self, x: pl.Tensor) -> pl.Tensor:
        moved = x - self.draw(int(x.shape[-1]))
        found: pl.Tensor = x * ((moved * moved).mean(-1, keepdims=True) + 1e-5) ** -0.5
        return found

    def bypass(self, old: pl.Tensor, new: pl.Tensor) -> pl.Tensor:
        shares = self.random.uniform(0.3, 0.9, int(old.shape[-1]))
        return old + (new - old) * shares.astype("float32")

    def remember(self, name: str, x: pl.Tensor, axis: int) -> pl.Tensor:
        """Join the last steps of the chunks before and x, and keep the last ones of both."""
        old = self.b.tensor(name)
        both: pl.Tensor = self.b.op("Concat", old, x, axis=axis)
        bounds = (np.array([n]) for n in (-int(old.shape[axis]), 2**31, axis))
        self.following[name] = self.b.op("Slice", both, *bounds)
        return both

    def convolve(self, name: str, x: pl.Tensor, stack: Stack) -> pl.Tensor:
        """Apply a gated convolution, which sees all of the chunk and some of the past."""
        b, width, half = self.b, stack.width, stack.kernel // 2
        wide, gate = b.op("Split", self.apply_linear(x, 2 * width), axis=-1, outputs=2)
        x = (wide * gate.sigmoid()).transpose(1, 2, 0)
        both = self.remember(name, x, 2)
        past = b.op("Conv", both, self.draw_kernel(width, 1, half + 1), group=width)
        kernel = self.draw_kernel(width, 1, stack.kernel)
        chunk = b.op("Conv", x, kernel, group=width, pads=[half, half])
        scaled = chunk * (1 + self.draw(width, stack.steps))
        x = self.swoosh((past + scaled).transpose(2, 0, 1), 1)
        return self.apply_linear(x, width)

    def weigh(self, name: str, x: pl.Tensor, mask: pl.Tensor, stack: Stack) -> pl.Tensor:
        """Return the weights of attention: heads, N, steps, and the steps seen."""
        b, heads, steps, left = self.b, stack.heads, stack.steps, stack.left
        sizes = heads * QUERY, heads * QUERY, heads * PLACE
        wide = self.apply_linear(x, sum(sizes))
        query, key, place = b.op("Split", wide, np.array(sizes), axis=-1, outputs=3)
        key = self.remember(name, key, 0)
        query = query.reshape(steps, -1, heads, QUERY).transpose(2, 1, 0, 3)
        key = key.reshape(left + steps, -1, heads, QUERY).transpose(2, 1, 3, 0)
        places = left + 2 * steps - 1
        place = place.reshape(steps, -1, heads, PLACE).transpose(2, 1, 0, 3)
        near = place @ self.draw(heads, 1, PLACE, places, before=PLACE)
        # Row i begins at place steps - 1 - i: a row of one place less moves each by one.
        near = near.reshape(heads, -1, steps * places)[:, :, steps - 1 : -1]
        near = near.reshape(heads, -1, steps, places - 1)[:, :, :, : left + steps]
        scores = (query @ key) * QUERY**-0.5 + near
        found: pl.Tensor = b.op("Where", mask, np.float32(-1000), scores).softmax(axis=-1)
        return found

    def attend(self, name: str, x: pl.Tensor, weights: pl.Tensor, stack: Stack) -> pl.Tensor:
        heads, steps, left = stack.heads, stack.steps, stack.left
        value = self.apply_linear(x, heads * VALUE)
        value = self.remember(name, value, 0)
        value = value.reshape(left + steps, -1, heads, VALUE).transpose(2, 1, 0, 3)
        found = (weights @ value).transpose(2, 1, 0, 3).reshape(steps, -1, heads * VALUE)
        return self.apply_linear(found, stack.width)

    def attend_nonlinearly(
        self, name: str, x: pl.Tensor, weights: pl.Tensor, stack: Stack
    ) -> pl.Tensor:
        """Apply the first head's weights to gated features."""
        b, hidden = self.b, 3 * stack.width // 4
        gate, value, after = b.op("Split", self.apply_linear(x, 3 * hidden), axis=-1, outputs=3)
        value = (value * gate.tanh()).transpose(1, 0, 2).reshape(1, -1, stack.steps, hidden)
        value = self.remember(name, value, 2)
        found = (weights[0:1] @ value).reshape(-1, stack.steps, hidden).transpose(1, 0, 2)
        return self.apply_linear(found * after, stack.width)

    def feed_forward(self, x: pl.Tensor, hidden: int) -> pl.Tensor:
        wide = self.swoosh(self.apply_linear(x, hidden), 4)
        return self.apply_linear(wide, int(x.shape[-1]))

    def add_layer(self, number: int, x: pl.Tensor, mask: pl.Tensor, stack: Stack) -> pl.Tensor:
        key, nonlin, value1, value2, conv1, conv2 = stack.list_states(number)
        old, weights = x, self.weigh(key, x, mask, stack)
        x = x + self.feed_forward(x, 3 * stack.hidden // 4)
        x = x + self.attend_nonlinearly(nonlin, x, weights, stack)
        x = x + self.attend(value1, x, weights, stack)
        x = x + self.convolve(conv1, x, stack)
        x = self.bypass(old, x + self.feed_forward(x, stack.hidden))
        x = x + self.attend(value2, x, weights, stack)
        x = x + self.convolve(conv2, x, stack)
        x = self.normalize(x + self.feed_forward(x, 5 * stack.hidden // 4))
        return self.bypass(old, x)

    def average(self, x: pl.Tensor, factor: int) -> pl.Tensor:
        """Return a weighted mean of each `factor` steps."""
        steps, _, width = x.shape
        shares = np.exp(self.draw(factor))
        x = x.reshape(int(steps) // factor, factor, -1, int(width))
        found: pl.Tensor = (x * (shares / shares.sum()).reshape(factor, 1, 1)).sum(1)
        return found

    def add_stack(self, first: int, x: pl.Tensor, mask: pl.Tensor, stack: Stack) -> pl.Tensor:
        b, factor = self.b, stack.factor
        if (missing := stack.width - int(x.shape[-1])) > 0:
            x = b.op("Pad", x, np.array([0] * 5 + [missing]))
        slow = x if factor == 1 else self.average(x, factor)
        seen = mask[:, ::factor].reshape(-1, 1, (LEFT + STEPS) // factor)
        for number in range(first, first + self.layers):
            slow = self.add_layer(number, slow, seen, stack)
        if factor == 1:
            return slow
        slow = slow.reshape(stack.steps, 1, -1, stack.width) + np.zeros((factor, 1, 1), "float32")
        return self.bypass(x, slow.reshape(STEPS, -1, stack.width))

    def embed(self, x: pl.Tensor, width: int) -> pl.Tensor:
        """Return (16, N, width) of the frames of a chunk, (N, 45, 80)."""
        b = self.b
        x = x.reshape(-1, 1, CHUNK, BANDS)
        steps = ((8, [1, 1], [0, 1, 0, 1]), (32, [2, 2], [0] * 4), (128, [1, 2], [0] * 4))
        for channels, strides, pads in steps:
            kernel = self.draw_kernel(channels, int(x.shape[1]), 3, 3)
            x = self.swoosh(b.op("Conv", x, kernel, strides=strides, pads=pads), 1)
        both = b.op("Concat", b.tensor("embed_states"), x, axis=2)
        self.following["embed_states"] = both[:, :, STEPS : STEPS + 3]
        wide = b.op("Conv", both, self.draw_kernel(128, 1, 7, 7), group=128, pads=[0, 3, 0, 3])
        wide = self.swoosh(b.op("Conv", wide, self.draw_kernel(384, 128, 1, 1)), 4)
        x = x[:, :, :STEPS] + b.op("Conv", wide, self.draw_kernel(128, 384, 1, 1))
        x = x.transpose(2, 0, 1, 3).reshape(STEPS, -1, 128 * 19)
        return self.normalize(self.apply_linear(x, width))

    def build(self) -> pl.Graph:
        b, stacks = self.b, self.stacks
        x = b.input("x", "float32", ("N", CHUNK, BANDS))
        states = dict[str, tuple[int | str, ...]]()
        for layer in range(len(stacks) * self.layers):
            states |= stacks[layer // self.layers].list_states(layer)
        states["embed_states"] = "N", 128, 3, 19
        for name, shape in states.items():
            b.input(name, "float32", shape)
        count = b.input("processed_lens", "int64", ("N",))
        x = self.embed(x, stacks[0].width)
        unseen = b.op("LessOrEqual", count.reshape(-1, 1), np.arange(LEFT)[::-1].reshape(1, -1))
        mask = b.op("Pad", unseen, np.array([0, 0, 0, STEPS]), np.array(False))
        for place, stack in enumerate(stacks):
            x = self.add_stack(place * self.layers, x, mask, stack)
        logits = self.apply_linear(self.average(x, 2), WORDS).transpose(1, 0, 2)
        b.output("log_probs", b.op("LogSoftmax", logits, axis=-1))
        for name in states:
            b.output(f"new_{name}", self.following[name])
        b.output("new_processed_lens", count + np.int64(STEPS))
        return b.build()


def describe(stacks: Sequence[Stack], layers: int) -> dict[str, str]:
    """Return the metadata that sherpa-onnx reads."""
    columns = {
        "encoder_dims": [stack.width for stack in stacks],
        "query_head_dims": [QUERY] * len(stacks),
        "value_head_dims": [VALUE] * len(stacks),
        "num_heads": [stack.heads for stack in stacks],
        "num_encoder_layers": [layers] * len(stacks),
        "cnn_module_kernels": [stack.kernel for stack in stacks],
        "left_context_len": [stack.left for stack in stacks],
    }
    joined = {name: ",".join(map(str, column)) for name, column in columns.items()}
    return {"model_type": "zipformer2", "T": str(CHUNK), "decode_chunk_len": str(SHIFT), **joined}


def save_network(folder: Path, *, tiny: bool = False) -> tuple[Path, Path, int]:
    """Write the network and its tokens; return both paths and the number of weights."""
    import onnx

    stacks, layers = (TINY, 1) if tiny else (STACKS, 2)
    graph = Network(stacks, layers).build()
    path, tokens = folder / "zipformer.onnx", folder / "tokens.txt"
    pl.save(graph, path)
    model = onnx.load(path)
    onnx.helper.set_model_props(model, describe(stacks, layers))
    onnx.save(model, path)
    names = ["<blk>", *(f"w{n}" for n in range(1, WORDS))]
    tokens.write_text("".join(f"{name} {n}\n" for n, name in enumerate(names)))
    return path, tokens, sum(prod(one.dims) for one in model.graph.initializer)
