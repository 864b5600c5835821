"""Frames of video files and cameras."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping

from ..runtime.streaming.stamped import Stamped
from .containers import MOST_PIXELS, check_lengths, decode, import_av, translate_errors
from .reader import Reader, to_feed


def read_video(
    path: str | os.PathLike[str],
    feed: str | None = None,
    *,
    size: tuple[int, int] | None = None,
    format: str | None = None,
    options: Mapping[str, str] | None = None,
    max_pixels: int = MOST_PIXELS,
) -> Reader:
    """Read the frames of a video file or camera, one at a time.

    Parameters
    ----------
    path : str or path
        A file, or a device, such as ``"/dev/video0"``.
    feed : str, optional
        The input to which frames are fed. By default, items are plain frames, as `join` takes them.
    size : (int, int), optional
        Height and width to which frames are scaled; by default those of the video.
    format : str, optional
        The format of the container, if FFmpeg cannot detect it: ``"v4l2"`` for cameras on Linux,
        ``"avfoundation"`` on macOS.
    options : Mapping of str to str, optional
        For FFmpeg, such as ``{"framerate": "30", "video_size": "1280x720"}``.
    max_pixels : int, default 2**25
        The most pixels of a frame: a small file may claim large frames, which take memory.

    Returns
    -------
    Reader
        Yields `Stamped` frames: seconds by the container's clock, and a uint8 array of shape
        (height, width, 3), red, green and blue.

    Raises
    ------
    SourceError
        If PyAV, the extra ``[video]``, is not installed, or `max_pixels` is invalid; while reading,
        if that fails, or a frame is larger than allowed.

    Examples
    --------
    ::

        camera = pl.sources.read_video("/dev/video0", "frame", format="v4l2")
        async with session.stream(camera, keep="latest") as results: ...
    """
    import_av()
    check_lengths(max_pixels=max_pixels)
    return Reader(_read_frames(path, feed, size, format, options, max_pixels))


def _read_frames(
    path: str | os.PathLike[str],
    feed: str | None,
    size: tuple[int, int] | None,
    format: str | None,
    options: Mapping[str, str] | None,
    max_pixels: int,
) -> Generator[Stamped, None, None]:
    scaled = {} if size is None else {"height": size[0], "width": size[1]}
    for frame, time_s in decode(path, "video", format, options, max_pixels):
        with translate_errors(f"a frame of {os.fspath(path)} cannot be converted"):
            pixels = frame.to_ndarray(format="rgb24", **scaled)
        yield Stamped(time_s, to_feed(feed, pixels))
