"""Two video files of different rates, joined by time, as a live stream that drops what is too much.

The files are written first: a shade of grey that grows with time, at 25 and at 10 frames per
second, and some frames of the second one are missing. Takes PyAV, the extra [video].

    python examples/05_two_videos.py
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import av
import numpy as np
import plait as pl
import trio

SIZE = 48, 64
FRAME = (*SIZE, 3)


def write_video(path: Path, rate: int, seconds: int, missing: range) -> None:
    """Write frames whose brightness is their time: two shades for each tenth of a second."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("ffv1", rate=rate)
        stream.height, stream.width, stream.pix_fmt = *SIZE, "bgr0"
        for number in range(rate * seconds):
            if number not in missing:
                frame = av.VideoFrame.from_ndarray(
                    np.full(FRAME, 20 * number / rate, np.uint8), "rgb24"
                )
                frame.pts, frame.time_base = number, Fraction(1, rate)
                container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def plan() -> pl.Plan:
    """Plan the mean difference of two frames."""
    b = pl.GraphBuilder("difference")
    fast, slow = (b.input(name, "uint8", FRAME).astype("float32") for name in ("fast", "slow"))
    b.output("difference", (fast - slow).mean())
    return pl.plan(b.build())


async def main(folder: Path) -> None:
    fast, slow = folder / "fast.mkv", folder / "slow.mkv"
    write_video(fast, rate=25, seconds=4, missing=range(0))
    write_video(slow, rate=10, seconds=4, missing=range(12, 15))
    videos = {"slow": pl.sources.read_video(slow), "fast": pl.sources.read_video(fast)}
    joined = pl.join(videos, tolerance_s=0.021)
    async with pl.Session(plan()) as session:
        async with session.stream(joined, keep="latest") as results:
            async for item in results:
                print(f"{item.stamp:5.2f} s: differ by {item['difference']:.1f}")
                await trio.sleep(0.02)  # while somebody looks at it
        print(f"{session.status().dropped} pairs dropped of {joined.status().matched}")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        trio.run(main, Path(folder))
