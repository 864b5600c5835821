"""Trains, is killed again and again, goes on from checkpoints: run as a script of its own.

Half of the processes are killed at a random time, the other half at a random line of the code that
saves checkpoints. What the last of them ends with must be what one that nobody disturbs does.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import trio
from checkpoint_moments import kill_at
from plait.graph import learning

STEPS, LIVES = 30, 24
DATA = np.random.default_rng(1).normal(size=(64, 5)).astype("float32")


def model() -> pl.Graph:
    """Return a step of training: weights, Adam's slots, a schedule that counts steps."""
    b = pl.GraphBuilder("model")
    x = b.input("x", "float32", (16, 5))
    hidden = b.variable("hidden", learning.glorot_normal((5, 8), seed=0))
    out = b.variable("out", learning.glorot_normal((8, 1), seed=1))
    computed = b.op("MatMul", b.op("Tanh", b.op("MatMul", x, hidden)), out)
    wanted = b.op("ReduceSum", x, np.array([1]), keepdims=True)
    loss = learning.mean_squared_error(b, computed, wanted)
    b.output("loss", loss)
    b.output("train", learning.minimize(b, loss, learning.Adam(learning.StepDecay(0.1, 7, 0.5))))
    return b.build()


async def train(plan: pl.Plan, folder: str) -> None:
    """Train to the last step, from the newest checkpoint if there is one."""
    checkpoints = pl.Checkpoints(folder)
    rng, losses, done = np.random.default_rng(2), list[float](), 0
    async with pl.Session(plan) as session:
        newest = checkpoints.newest()
        if newest is not None:
            await session.assign(newest.matching(session.variables))
            rng.bit_generator.state = newest.notes["rng"]
            losses, done = newest.notes["losses"], newest.step
        for step in range(done + 1, STEPS + 1):
            results = await session.run({"x": rng.choice(DATA, 16)})
            losses.append(float(results["loss"]))
            notes = {"rng": rng.bit_generator.state, "losses": losses}
            checkpoints.save(step, await session.fetch_variables(), notes)


def life(plan: pl.Plan, folder: str, seconds: float = 0, lines: int = 0) -> bool:
    """Train in a process that may be killed; return whether it came to the end."""
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_REAL, seconds)  # nobody handles it: it kills
        if lines:
            kill_at(lines)
        trio.run(train, plan, folder)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status == 0 or os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGALRM), status
    return status == 0


def ended(folder: str) -> tuple[Any, ...]:
    """Return all that a run ended with."""
    newest = pl.Checkpoints(folder).newest()  # warnings are errors here
    assert newest is not None
    variables = {name: array.tobytes() for name, array in newest.variables.items()}
    return newest.step, variables, newest.notes


def main(parent: str, seed: str) -> None:
    """Print how often it was killed, at how many different steps."""
    calm, killed = str(Path(parent, "calm")), str(Path(parent, "killed"))
    plan = pl.plan(model())
    begun = time.perf_counter()
    assert life(plan, calm)
    longest, chance = time.perf_counter() - begun, random.Random(int(seed))
    at = list[int]()
    for number in range(LIVES):
        lines = chance.randrange(1, 600) if number % 2 else 0
        if life(plan, killed, 0 if lines else chance.uniform(0, longest / 3), lines):
            break
        at.append(max(pl.Checkpoints(killed).steps(), default=0))
    else:
        assert life(plan, killed)
    assert ended(killed) == ended(calm)
    assert ended(calm)[0] == STEPS
    print(len(at), len(set(at)))


if __name__ == "__main__":
    main(*sys.argv[1:])
