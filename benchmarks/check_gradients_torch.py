"""Are gradients those of torch, and what do they cost beside it?

The networks of `gradient_networks` have the same weights on both sides: residual blocks with batch
normalization as in training, a block of a transformer, convolution and pooling in many attributes,
cells read at computed places, and an LSTM in both directions. In float64 the loss and the gradients
of all weights are compared: the largest difference, beside the largest number of that gradient. A
step, which is the loss and all gradients, is timed in float32 on one thread each: the process's own
time, the sides taking turns.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import plait as pl
import torch
from gradient_networks import NETWORKS, Arrays, Network, Tensors
from measure import alternate, save

MOST_ERROR = 1e-10


def weights_of(network: Network, rng: np.random.Generator) -> Arrays:
    """Return weights that keep activations of about the same size."""
    shapes = network.weights.items()
    return {n: rng.standard_normal(s) / math.sqrt(math.prod(s[1:])) for n, s in shapes}


def as_floats(arrays: Mapping[str, Any], dtype: str) -> Arrays:
    return {n: x.astype(dtype) if x.dtype.kind == "f" else x for n, x in arrays.items()}


def planned(network: Network, weights: Arrays, feeds: Arrays) -> pl.Plan:
    """Return the plan of a step: the loss, and the gradient of each weight."""
    b = pl.GraphBuilder("step")
    names = {name: b.variable(name, value) for name, value in weights.items()}
    names |= {name: b.input(name, value.dtype, value.shape) for name, value in feeds.items()}
    loss = network.plait(b, names)
    for name, gradient in zip(weights, pl.gradients(b, loss, [*weights]), strict=True):
        b.output(f"gradient/{name}", gradient)
    b.output("loss", loss)
    return pl.plan(b.build(), ["cpu"])


def stepped(
    network: Network, leaves: Tensors, feeds: Tensors
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    loss = network.torch({**leaves, **feeds})
    return loss, torch.autograd.grad(loss, list(leaves.values()))


def tensors(arrays: Mapping[str, Any], *, learned: bool = False) -> dict[str, torch.Tensor]:
    return {n: torch.from_numpy(x).requires_grad_(learned) for n, x in arrays.items()}


def compared(network: Network, rounds: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    weights, feeds = weights_of(network, rng), network.feeds(rng)
    with pl.BlockingSession(planned(network, weights, feeds)) as session:
        ours = session.run(feeds)
    loss, theirs = stepped(network, tensors(weights, learned=True), tensors(feeds))
    errors = {
        name: relative(ours[f"gradient/{name}"], gradient.numpy())
        for name, gradient in zip(weights, theirs, strict=True)
    }
    made: dict[str, Any] = {
        "weights": int(sum(value.size for value in weights.values())),
        "loss": float(ours["loss"]),
        "loss_error": relative(ours["loss"], loss.detach().numpy()),
        "largest_gradient_error": max(errors.values()),
        "largest_of": max(errors, key=lambda name: errors[name]),
    }
    if rounds:
        made["step_s"] = timed(
            network, as_floats(weights, "float32"), as_floats(feeds, "float32"), rounds
        )
        made["plait_per_torch"] = made["step_s"]["plait"] / made["step_s"]["torch"]
    return made


def relative(ours: Any, theirs: Any) -> float:
    return float(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-300))


def timed(network: Network, weights: Arrays, feeds: Arrays, rounds: int) -> dict[str, float]:
    leaves, given = tensors(weights, learned=True), tensors(feeds)
    with pl.BlockingSession(planned(network, weights, feeds)) as session:
        sides: dict[str, Callable[[], object]] = {
            "plait": partial(session.run, feeds),
            "torch": partial(stepped, network, leaves, given),
        }
        return alternate(sides, rounds=rounds, clock=time.process_time)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="*", default=[*NETWORKS], choices=[*NETWORKS])
    parser.add_argument("--rounds", type=int, default=9, help="of timing; 0 leaves it out")
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures = {name: compared(NETWORKS[name], arguments.rounds) for name in arguments.networks}
    for name, found in figures.items():
        print(name, found)
        error = max(found["loss_error"], found["largest_gradient_error"])
        if not error <= MOST_ERROR:
            raise SystemExit(f"{name}: gradients differ by {error:.1e}")
    if arguments.save:
        save("gradients_torch", {"threads": 1, "networks": figures})


if __name__ == "__main__":
    main()
