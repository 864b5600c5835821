"""Train a small residual network, half of it on another device: the losses are the same bits.

The second block, its gradients and its updates run in a process of their own; everything else is
planned as ever. Batch normalization keeps running averages in variables, that are assigned to in
the same item; the digits are told by those, from the same weights. Needs scikit-learn.

    python examples/train_on_two_devices.py [--steps N]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import plait as pl
from numpy.typing import NDArray
from plait import learning
from train_digits import CLASSES, SIZE, Batch, load

WIDTH = 16
TWO_DEVICES = {"*block2*": "worker:0", "*": "cpu"}


class Network:
    """A residual network of two blocks, as it is trained or as it is used."""

    def __init__(self, builder: pl.GraphBuilder, *, training: bool) -> None:
        self.builder = builder
        self.training = training
        self.random = np.random.default_rng(0)

    def scores(self, images: str) -> str:
        """Return a score for each digit."""
        x = self.convolution(images, 1, "stem")
        x = self.block(self.block(x, "block1"), "block2")
        x = self.op("Flatten", self.op("GlobalAveragePool", x, name="pool"), name="flat")
        w = self.variable("head/w", learning.he_normal((WIDTH, CLASSES), self.random))
        bias = self.variable("head/b", learning.zeros((CLASSES,)))
        return self.op("Gemm", x, w, bias, name="head")

    def block(self, x: str, name: str) -> str:
        """Return x, and what two convolutions add to it."""
        y = self.convolution(x, WIDTH, f"{name}/first")
        y = self.convolution(y, WIDTH, f"{name}/second")
        return self.op("Add", x, y, name=f"{name}/add")

    def convolution(self, x: str, n_in: int, name: str) -> str:
        """Return a convolution of 3 × 3, normalized, and what is above 0 of it."""
        w = self.variable(f"{name}/w", learning.he_normal((WIDTH, n_in, 3, 3), self.random))
        y = self.op("Conv", x, w, pads=[1] * 4, name=f"{name}/conv")
        return self.op("Relu", self.normalized(y, f"{name}/norm"), name=f"{name}/relu")

    def normalized(self, x: str, name: str) -> str:
        """Return x with mean 0 and variance 1: of the batch in training, else on average."""
        ones, zeros = learning.ones((WIDTH,)), learning.zeros((WIDTH,))
        scale, shift = self.variable(f"{name}/scale", ones), self.variable(f"{name}/shift", zeros)
        averages = self.variable(f"{name}/mean", zeros), self.variable(f"{name}/variance", ones)
        inputs = (x, scale, shift, *averages)
        if not self.training:
            return self.op("BatchNormalization", *inputs, name=name)
        y, *found = self.builder.op(
            "BatchNormalization", *inputs, name=name, outputs=3, training_mode=True
        )
        for variable, average in zip(averages, found, strict=True):
            self.builder.assign(variable, average, name=f"{variable}/assign")
        return str(y)

    def variable(self, name: str, initial: pl.Graph | NDArray[Any]) -> str:
        """Return a variable, a new one when training."""
        return self.builder.variable(name, initial) if self.training else name

    def op(self, op: str, *inputs: str, name: str, **attributes: Any) -> str:
        """Return what a node makes, which is called after its use."""
        name = name if self.training else f"use/{name}"
        return str(self.builder.op(op, *inputs, name=name, **attributes))


def build() -> pl.Graph:
    """Return the graph: its outputs are the loss, the step of training, and the digits."""
    b = pl.GraphBuilder("residual")
    images = b.input("images", "float32", ("batch", 1, SIZE, SIZE))
    labels = b.input("labels", "int64", ("batch",))
    loss = learning.sparse_softmax_cross_entropy(
        b, Network(b, training=True).scores(images), labels
    )
    averages = [node.outputs[0] for node in b.nodes if node.op == "Assign"]
    step = learning.minimize(b, loss, learning.SGD(0.1, momentum=0.9))
    b.output("loss", loss)
    b.output("step", b.group(step, *averages))
    scores = Network(b, training=False).scores(images)
    b.output("digits", b.tensor(scores).argmax(axis=1))
    return b.build()


def batches(steps: int) -> list[Batch]:
    """Return as many batches, which are the same each time."""
    data, random = load()[0], np.random.default_rng(1)
    return list(islice((batch for _ in range(steps) for batch in data.batches(random)), steps))


def train(batches: Sequence[Batch], pin: dict[str, str]) -> tuple[list[float], float]:
    """Return the loss at each step, and the accuracy on the test digits."""
    plan = pl.plan(build(), sorted(set(pin.values())), pin=pin)
    with pl.BlockingSession(plan) as session:
        losses = [float(session.run(batch, ["loss", "step"])[0]) for batch in batches]
        test = load()[1]
        found = session.run({"images": test.images}, "digits")
    return losses, float((found == test.labels).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    data, found = batches(parser.parse_args().steps), []
    for name, pin in (("cpu alone", {"*": "cpu"}), ("cpu and worker:0", TWO_DEVICES)):
        start = time.perf_counter()
        losses, accuracy = train(data, pin)
        found.append(losses)
        seconds = time.perf_counter() - start
        print(f"{name}: loss {losses[-1]:.6f}, {accuracy:.1%} of test digits, {seconds:.1f} s")
    print("the same losses, bit by bit:", found[0] == found[1])


if __name__ == "__main__":
    main()
