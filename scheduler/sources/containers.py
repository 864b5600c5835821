"""Media containers and capture devices, opened and decoded by PyAV."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from ...graph.values.errors import get_text
from ...graph.values.extras import get_install_command, import_extra
from ..errors import SourceError


def import_av() -> Any:
    """Return PyAV; raise SourceError where it is not installed."""
    return import_extra("av", "PyAV is not installed", get_install_command("video"), SourceError)


MOST_PIXELS = 1 << 25
"""The default limit of an image: a frame of 8K video."""


def decode(
    path: str | os.PathLike[str],
    kind: Literal["audio", "video"],
    format: str | None,
    options: Mapping[str, str] | None,
    max_pixels: int = MOST_PIXELS,
) -> Iterator[tuple[Any, float]]:
    """Yield the frames, and times, of the first stream of a `kind` in the container `path`.

    `format` and `options` are for FFmpeg. Raises SourceError if the container cannot be opened or
    decoded, or a frame has no time stamp or more than `max_pixels` pixels.
    """
    av = import_av()
    name = os.fspath(path)
    with translate_errors(f"{name} cannot be opened"):
        container = av.open(
            name, format=format, options=dict(options or {}), metadata_errors="replace"
        )
    with container:
        with translate_errors(f"{name} cannot be decoded"):
            streams = getattr(container.streams, kind)
            if not streams:
                raise SourceError(f"{name} has no {kind} in it", fix=f"choose a file with {kind}")
            codec = streams[0].codec_context
            if codec is not None and kind == "video":
                check_pixels(name, codec.width, codec.height, max_pixels)
                # Later frames may be larger; FFmpeg counts lines that it adds to each.
                codec.options = {"max_pixels": str(2 * max_pixels + (1 << 20))}
            frames = container.decode(streams[0])
        while True:
            with translate_errors(f"{name} cannot be decoded any further"):
                frame = next(frames, None)
                time_s = None if frame is None else frame.time
                if frame is not None and kind == "video":
                    check_pixels(f"a frame of {name}", frame.width, frame.height, max_pixels)
            if frame is None:
                return
            if time_s is None:
                raise SourceError(
                    f"a frame of {name} has no time stamp",
                    fix="put the frames into a container that keeps them, such as mp4 or mkv",
                )
            yield frame, time_s


def check_pixels(name: str, width: int, height: int, most: int) -> None:
    if width * height > most:
        raise SourceError(
            f"{name} has {height:,} x {width:,} pixels, more than {most:,}",
            fix="make it smaller, or allow more: max_pixels=",
        )


def check_lengths(**lengths: object) -> None:
    """Raise SourceError unless all `lengths` are whole numbers from 1 on."""
    for name, length in lengths.items():
        if type(length) is not int or length < 1:
            raise SourceError(f"{name} is {length!r}", fix="use a whole number from 1 on")


@contextmanager
def translate_errors(summary: str) -> Iterator[None]:
    """Replace any error of a decoder by a SourceError that begins with `summary`."""
    try:
        yield
    except SourceError:
        raise
    except Exception as error:
        told = getattr(error, "strerror", None) or get_text(error)
        raise SourceError(f"{summary}: {told}", fix="see that it is there, and whole") from error
