"""Networks trained on real digits, and on two devices the same bits as on one."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import plait as pl
import pytest
import train_digits
import train_on_two_devices as two
from plait.graph.core.ir import ASSIGN
from plait.graph.learning import SGD

pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="needs scikit-learn")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "epochs", "accuracy"), [("softmax", 10, 0.94), ("mlp", 5, 0.96), ("lenet", 4, 0.97)]
)
def test_a_model_learns(name: str, epochs: int, accuracy: float) -> None:
    assert train_digits.train(name, epochs, ["cpu"]) >= accuracy


def test_digits_that_are_tested_are_not_trained_on() -> None:
    train, test = train_digits.load()
    seen = {image.tobytes() for image in train.images}
    assert len(train.labels) + len(test.labels) == 1797
    assert not any(image.tobytes() in seen for image in test.images)


def test_an_epoch_shows_each_image_once() -> None:
    data = train_digits.load()[0]
    batches = list(data.batches(np.random.default_rng(0)))
    shown = np.concatenate([batch["images"] for batch in batches])
    assert len(shown) == len(data.labels) // train_digits.BATCH * train_digits.BATCH
    pairs = {(x.tobytes(), int(y)) for x, y in zip(data.images, data.labels, strict=True)}
    labels = np.concatenate([batch["labels"] for batch in batches])
    assert {(x.tobytes(), int(y)) for x, y in zip(shown, labels, strict=True)} <= pairs
    assert len({x.tobytes() for x in shown}) >= len(shown) - 1


def test_every_weight_is_trained() -> None:
    graph = train_digits.training_graph(train_digits.lenet, SGD(0.1))
    weights = {
        f"{layer}/{part}" for layer in ("first", "second", "hidden", "scores") for part in "wb"
    }
    assert {node.inputs[0] for node in graph.nodes if node.op == ASSIGN} == weights


@pytest.mark.extended
def test_half_of_a_network_on_another_device_has_the_same_losses_bit_by_bit() -> None:
    batches = two.batches(12)
    alone, accuracy = two.train(batches, {"*": "cpu"})
    assert alone[-1] < alone[0]
    assert two.train(batches, two.TWO_DEVICES) == (alone, accuracy)


def test_both_devices_work_forward_and_backward() -> None:
    plan = pl.plan(two.build(), ["cpu", "worker:0"], pin=two.TWO_DEVICES)
    names = dict.fromkeys(("cpu", "worker:0"), "")
    for subgraph in plan.partition.subgraphs:
        names[subgraph.device] += " ".join(node.name for node in subgraph.graph.nodes) + " "
    for device, block in (("cpu", "block1"), ("worker:0", "block2")):
        for start in ("", "gradient/", "train/"):
            assert f" {start}{block}/first/" in f" {names[device]}"
