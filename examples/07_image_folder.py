"""A folder of images, decoded on two workers: the mean colour of each, in order.

The files are written first, of several sizes and formats; one is damaged, and fails alone. Takes
Pillow, the extra [images].

    python examples/07_image_folder.py
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import plait as pl
from PIL import Image

SIZE = 64


def write_images(folder: Path) -> None:
    colours = {"blue.png": (20, 40, 200), "green.jpg": (30, 180, 60), "red.webp": (220, 30, 30)}
    for number, (name, colour) in enumerate(colours.items(), 2):
        Image.new("RGB", (100 * number, 80 * number), colour).save(folder / name)
    (folder / "damaged.jpg").write_bytes(b"\xff\xd8\xff no more of it")


def plan() -> pl.Plan:
    """Plan decode → mean, decoding on whichever worker has less to do."""
    b = pl.GraphBuilder("colours")
    file = b.input("file", "uint8", ("nbytes",))
    image = b.call(pl.sources.decode_image, file, height=SIZE, width=SIZE, name="decode")
    b.output("colour", image.astype("float32").mean(axis=(0, 1)))
    workers = "worker:0..1"
    return pl.plan(b.build(), ["cpu", workers], pin={"decode": workers}, max_in_flight=4)


def main(folder: Path) -> None:
    write_images(folder)
    with pl.BlockingSession(plan()) as session:
        for item in session.stream(pl.sources.read_image_files(folder, "file")):
            if item.error is not None:
                print(item.stamp, "failed:", str(item.error).splitlines()[0])
            else:
                print(item.stamp, "mean colour", item["colour"].round())


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        main(Path(folder))
