"""Train classifiers of handwritten digits: a matrix, two layers, and a small LeNet.

The images are scikit-learn's, which come with it: ``pip install 'scikit-learn>=1.3'``. Weights,
momenta and the step are variables of the graph; an item is one step of training, and asking the
same session for the scores alone changes nothing.

    python examples/train_digits.py [softmax] [mlp] [lenet] [--epochs N] [--devices cpu,worker:0]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import plait as pl
from numpy.typing import NDArray
from plait import learning

CLASSES, SIZE, BATCH = 10, 8, 32

Batch: TypeAlias = dict[str, NDArray[Any]]


class Digits(NamedTuple):
    """Images of 8 × 8 pixels from 0 to 1, and which digits they show."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]

    def batches(self, random: np.random.Generator) -> Iterator[Batch]:
        """Yield the images once, shuffled, without those that fill no batch."""
        order = random.permutation(len(self.labels))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            yield {"images": self.images[chosen], "labels": self.labels[chosen]}


def load() -> tuple[Digits, Digits]:
    """Return four fifths of the digits to train on, and the rest to test with."""
    from sklearn.datasets import load_digits  # takes longer than everything else to import

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 1, SIZE, SIZE)
    order = np.random.default_rng(0).permutation(len(labels))
    last = len(order) * 4 // 5
    train, test = order[:last], order[last:]
    return Digits(images[train], labels[train]), Digits(images[test], labels[test])


def softmax(images: pl.Tensor, random: np.random.Generator) -> pl.Tensor:
    """Return scores that are sums of pixels."""
    return learning.dense(images.flatten(axis=1), CLASSES, "scores", random)


def mlp(images: pl.Tensor, random: np.random.Generator) -> pl.Tensor:
    """Return the scores of a network with 100 hidden units."""
    hidden = learning.dense(images.flatten(axis=1), 100, "hidden", random).relu()
    return learning.dense(hidden, CLASSES, "scores", random)


def lenet(images: pl.Tensor, random: np.random.Generator) -> pl.Tensor:
    """Return the scores of two convolutions and two products: a LeNet for images of 8 × 8."""
    x = images
    for name, channels, kernel in (("first", 20, 5), ("second", 50, 3)):
        x = learning.conv(x, channels, kernel, name, random).relu()
        x = x.max_pool(kernel_shape=[2, 2], strides=[2, 2])
    return mlp(x, random)


Model: TypeAlias = Callable[[pl.Tensor, np.random.Generator], pl.Tensor]
MODELS: dict[str, tuple[Model, learning.Optimizer, int]] = {
    "softmax": (softmax, learning.SGD(0.5), 20),
    "mlp": (mlp, learning.SGD(0.1, momentum=0.9, nesterov=True), 20),
    "lenet": (lenet, learning.AdamW(learning.CosineDecay(3e-3, 10 * 44)), 10),
}


def training_graph(model: Model, optimizer: learning.Optimizer) -> pl.Graph:
    """Return the graph of one step: the loss of a batch, and better weights for the next."""
    b = pl.GraphBuilder(f"train {model.__name__}")
    images = b.input("images", "float32", ("batch", 1, SIZE, SIZE))
    labels = b.input("labels", "int64", ("batch",))
    scores = model(images, np.random.default_rng(0))
    loss = learning.sparse_softmax_cross_entropy(b, scores, labels)
    b.output("loss", loss)
    b.output("train", learning.minimize(b, loss, optimizer))
    b.output("digits", scores.argmax(axis=1))
    return b.build()


def train(name: str, epochs: int | None, devices: list[str]) -> float:
    """Train a model, saying how it gets on, and return its accuracy on the test images."""
    model, optimizer, usual = MODELS[name]
    data, test = load()
    random, start = np.random.default_rng(1), time.perf_counter()
    with pl.BlockingSession(pl.plan(training_graph(model, optimizer), devices)) as session:

        def accuracy(digits: Digits) -> float:
            found = session.run({"images": digits.images}, "digits")
            return float((found == digits.labels).mean())

        for epoch in range(epochs or usual):
            losses = [session.run(b, ["loss", "train"])[0] for b in data.batches(random)]
            print(f"{name} {epoch + 1:3}: loss {np.mean(losses):.4f}", end="\r")
        right, seconds = accuracy(test), time.perf_counter() - start
        print(f"{name}: loss {np.mean(losses):.4f}, {right:.1%} of test digits, {seconds:.1f} s")
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("models", nargs="*", choices=[*MODELS, []], metavar="MODEL")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--devices", default="cpu")
    options = parser.parse_args()
    for name in options.models or MODELS:
        train(name, options.epochs, options.devices.split(","))


if __name__ == "__main__":
    main()
