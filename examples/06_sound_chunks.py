"""Chunks of a sound file that overlap: which note is played when, as a stream.

The file is written first: five notes, a fifth of a second each. Takes soundfile, the extra [audio].

    python examples/06_sound_chunks.py
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import plait as pl
import soundfile

RATE, CHUNK, HOP = 16_000, 1_024, 800
NOTES = {"c": 262, "d": 294, "e": 330, "f": 349, "g": 392}


def write_notes(path: Path) -> None:
    times = np.arange(RATE // 5) / RATE
    waves = [np.sin(2 * np.pi * frequency * times) for frequency in NOTES.values()]
    soundfile.write(path, np.concatenate(waves), RATE)


def plan() -> pl.Plan:
    """Plan how strong each note is: what a chunk has in common with a wave of it."""
    times = np.arange(CHUNK) / RATE
    angles = 2 * np.pi * np.outer(list(NOTES.values()), times)
    b = pl.GraphBuilder("notes")
    chunk = b.input("chunk", "float32", (CHUNK, 1))
    sine, cosine = (wave(angles).astype("float32") @ chunk for wave in (np.sin, np.cos))
    b.output("note", (sine * sine + cosine * cosine).argmax(axis=0))
    return pl.plan(b.build(), max_in_flight=4)


def main(folder: Path) -> None:
    path = folder / "notes.wav"
    write_notes(path)
    chunks = pl.sources.read_sound(path, CHUNK, "chunk", hop=HOP, rate=RATE)
    with pl.BlockingSession(plan()) as session:
        for item in session.stream(chunks):
            print(f"{item.stamp:4.2f} s: {[*NOTES][int(item['note'][0])]}")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        main(Path(folder))
