"""Many values of each item: tiles are found in images, and read in batches across images.

A function yields the tiles that have something on them, any number up to a bound. A small network
reads eight at once, whichever images they are of, on a plan of its own. A tile that cannot be read
is said not to be ok, and all others are read.

    python examples/05_rows_in_batches.py
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import plait as pl
import trio

SIDE, MOST = 8, 16
TILES = pl.TensorSpec("float32", ("tiles", SIDE, SIDE))
ROWS = pl.TensorSpec("float32", ("rows", SIDE, SIDE))


@pl.operator(TILES, inputs=[pl.TensorSpec("float32", ("height", "width"))])
def find_tiles(image: Any) -> Iterator[Any]:
    """Yield the tiles that are not empty."""
    for top in range(0, image.shape[0], SIDE):
        for left in range(0, image.shape[1], SIDE):
            tile = image[top : top + SIDE, left : left + SIDE]
            if tile.any():
                yield tile


@pl.operator(ROWS, inputs=[ROWS])
def check(tiles: Any) -> Any:
    """Return the tiles as they are, if they are clean."""
    if np.isnan(tiles).any():
        raise ValueError("a tile has scratches")
    return tiles


def reader() -> pl.Graph:
    """Return the network, for any number of tiles."""
    b = pl.GraphBuilder("reader")
    tiles = b.call(check, b.input("tiles", "float32", ("rows", SIDE, SIDE)), name="check")
    flat = tiles.flatten(axis=1)
    weights = np.random.default_rng(1).standard_normal((SIDE * SIDE, 10), "float32")
    b.output("digit", (flat @ weights).argmax(axis=1))
    return b.build()


async def main() -> None:
    b = pl.GraphBuilder("images")
    tiles = b.call(find_tiles, b.input("image", "float32", ("height", "width")), name="find")
    digits, ok = b.each(tiles, reader(), name="read", batch=8, on_error="value")
    b.output("digits", digits)
    b.output("ok", ok)
    bounds = {"height": 32, "width": 32, "tiles": MOST}
    plan = pl.plan(b.build(), bounds=bounds, max_in_flight=6)
    chance = np.random.default_rng(0)
    images = [np.kron(chance.random((4, 4)) > 0.7, chance.random((SIDE, SIDE))) for _ in range(12)]
    images[5][:SIDE, :SIDE] = np.nan
    source = ({"image": image.astype("float32")} for image in images)
    async with pl.Session(plan) as session, session.stream(source) as results:
        async for item in results:
            read = zip(item["digits"], item["ok"], strict=True)
            print(item.index, *(digit if is_ok else "?" for digit, is_ok in read))
    print(session.profile().row_batches["read"])


if __name__ == "__main__":
    trio.run(main)
