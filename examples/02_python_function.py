"""Python functions as nodes: two stages that overlap, one item failing, and the profile.

Each function runs in a worker process of its own, what is between them here. The second item cannot
be decoded: its error comes out at its place, and the others go on.

    python examples/02_python_function.py
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import plait as pl
import trio

SIZE = 512
IMAGE = pl.TensorSpec("float32", (SIZE, SIZE))


@pl.operator(IMAGE, inputs=[pl.TensorSpec("uint8", ("nbytes",))])
def decode(packed: Any) -> Any:
    """Unpack the bytes of an image."""
    pixels = np.frombuffer(zlib.decompress(packed.tobytes()), np.uint8)
    return pixels.reshape(SIZE, SIZE).astype(np.float32)


@pl.operator(pl.TensorSpec("float32", (2,)), inputs=[IMAGE])
def centre(image: Any, *, power: float = 1.0) -> Any:
    """Return row and column of the centre of brightness."""
    weights = image**power
    rows, columns = np.indices(weights.shape)
    total = weights.sum()
    return np.array([(rows * weights).sum(), (columns * weights).sum()], np.float32) / total


def plan() -> pl.Plan:
    """Plan decode → darken → clip → centre, the functions on workers."""
    b = pl.GraphBuilder("centres")
    image = b.call(decode, b.input("packed", "uint8", ("nbytes",)), name="decode")
    bright = image.add(-100.0, name="darken").relu(name="clip")
    b.output("centre", b.call(centre, bright, power=2.0, name="centre"))
    pins = {"decode": "worker:0", "centre": "worker:1"}
    devices = ["cpu", "worker:0", "worker:1"]
    return pl.plan(b.build(), devices=devices, pin=pins, max_in_flight=4)


def frames(count: int) -> Iterator[dict[str, Any]]:
    """Yield images of a spot that moves down the diagonal, all packed to the same length."""
    rows, columns = np.indices((SIZE, SIZE))
    for index in range(count):
        place = SIZE * (index + 1) / (count + 1)
        distance = np.hypot(rows - place, columns - place)
        packed = zlib.compress((255 * np.exp(-distance / 20)).astype(np.uint8).tobytes())
        padded = np.frombuffer(packed.ljust(SIZE * SIZE, b"\0"), np.uint8)
        yield {"packed": np.zeros_like(padded) if index == 1 else padded}


async def main() -> None:
    planned = plan()
    print(planned.report(), "\n")
    source = list(frames(12))
    async with pl.Session(planned) as session, session.stream(source) as results:
        async for item in results:
            if item.error is not None:
                print(item.index, "failed:", str(item.error).splitlines()[0])
            else:
                print(item.index, "spot at", item["centre"].round(1))
    print("\n" + session.profile().table())


if __name__ == "__main__":
    trio.run(main)
