"""Media that claim too much, or start programs: bounded, refused, never an exception of others."""

from __future__ import annotations

import os
import struct
import zlib
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import plait as pl
import pytest
from fuzzers.mutation import damaged_bytes
from media_files import write_video
from plait import sources


def make_black_png(width: int, height: int) -> bytes:
    """Return a PNG of one color and no file's size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        summed = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + summed

    packed = zlib.compressobj(9)
    lines = b"".join(packed.compress(bytes(1 + width)) for _ in range(height)) + packed.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", lines), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def encode(kind: str, width: int = 32, height: int = 24) -> bytes:
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    file = BytesIO()
    Image.fromarray(noise).save(file, kind)
    return file.getvalue()


def decode(content: bytes, size: int = 8, **more: int) -> Any:
    return sources.decode_image(np.frombuffer(content, np.uint8), height=size, width=size, **more)


def test_metadata_need_not_be_utf_8(tmp_path: Path) -> None:
    import av

    path = tmp_path / "latin.avi"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=25)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuvj420p"
        container.metadata["title"] = "caf~"
        frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), 20, np.uint8), "rgb24")
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    path.write_bytes(path.read_bytes().replace(b"caf~", b"caf\xe9"))
    assert len(list(sources.read_video(path))) == 1


def test_a_frame_has_no_more_pixels_than_allowed(tmp_path: Path) -> None:
    video = write_video(tmp_path / "grey.mkv", [1, 2], [0, 40])
    with pytest.raises(pl.SourceError, match=r"has 16 x 32 pixels, more than 511") as caught:
        next(sources.read_video(video, max_pixels=511))
    assert "max_pixels=" in str(caught.value.fix)
    assert len(list(sources.read_video(video, max_pixels=512))) == 2
    with pytest.raises(pl.SourceError, match="max_pixels is 0"):
        sources.read_video(video, max_pixels=0)


def test_a_small_file_of_a_large_image_is_refused_before_it_is_decode() -> None:
    beginning = make_black_png(7000, 5000)[:1000]  # to decode that would be another error
    with pytest.raises(pl.SourceError, match=r"5,000 x 7,000 pixels, more than 33,554,432"):
        decode(beginning)
    assert decode(make_black_png(70, 50), max_pixels=3500).shape == (8, 8, 3)
    with pytest.raises(pl.SourceError, match="more than 3,499"):
        decode(make_black_png(70, 50), max_pixels=3499)


@pytest.mark.parametrize("side", [20_000, 60_000])
def test_what_pillow_warns_of_is_refused(side: int) -> None:
    file = make_black_png(8, 8).replace(struct.pack(">II", 8, 8), struct.pack(">II", side, side))
    head = file[12:29]
    with pytest.raises(pl.SourceError):
        decode(file.replace(file[29:33], struct.pack(">I", zlib.crc32(head)), 1))


def test_a_large_jpeg_is_decoded_at_a_part_of_its_size() -> None:
    content = encode("JPEG", 1024, 512)
    with pytest.raises(pl.SourceError, match="512 x 1,024 pixels"):
        decode(content, size=512, max_pixels=1 << 18)
    small = decode(content, max_pixels=1 << 13)
    # Noise of one mean: whatever was left out, the mean stays.
    assert abs(float(small.mean()) - float(decode(content, size=500).mean())) < 4


def test_no_program_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "gs"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(pl.SourceError, match="not an image of a known format"):
        decode(encode("EPS"))
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "TGA", "PCX"])
def test_formats_of_pixels_are_read(kind: str) -> None:
    from plait.scheduler.sources.images import _RASTER  # registers an operator

    assert kind in _RASTER
    assert decode(encode(kind)).shape == (8, 8, 3)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "TGA", "PCX"])
def test_a_damaged_image_is_an_error_of_ours(kind: str) -> None:
    random, sound = Random(kind), encode(kind)
    for _ in range(100):
        content = damaged_bytes(random, sound, sound)
        with suppress(pl.SourceError):
            decode(content)
