"""Media containers and capture devices, opened and decoded by PyAV."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from ...graph.extras import how_to_install, import_extra
from ..errors import SourceError


def import_av() -> Any:
    """Return PyAV; raise SourceError where it is not installed."""
    return import_extra("av", "PyAV is not installed", how_to_install("video"), SourceError)


def decoded(
    path: str | os.PathLike[str],
    kind: Literal["audio", "video"],
    format: str | None,
    options: Mapping[str, str] | None,
) -> Iterator[Any]:
    """Yield the frames of the first stream of a kind, one at a time; close the container then.

    Raises
    ------
    SourceError
        If it cannot be opened or decoded, or a frame has no time stamp.
    """
    av = import_av()
    name = os.fspath(path)
    with _told(av, f"{name} cannot be opened"):
        container = av.open(name, format=format, options=dict(options or {}))
    with container:
        streams = getattr(container.streams, kind)
        if not streams:
            raise SourceError(f"{name} has no {kind} in it", fix=f"choose a file with {kind}")
        frames = container.decode(streams[0])
        while True:
            with _told(av, f"{name} cannot be decoded any further"):
                frame = next(frames, None)
            if frame is None:
                return
            if frame.time is None:
                raise SourceError(
                    f"a frame of {name} has no time stamp",
                    fix="put the frames into a container that keeps them, such as mp4 or mkv",
                )
            yield frame


@contextmanager
def _told(av: Any, what: str) -> Iterator[None]:
    try:
        yield
    except av.FFmpegError as error:
        raise SourceError(
            f"{what}: {error.strerror}", fix="see that it is there, and whole"
        ) from error
