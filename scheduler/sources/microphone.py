"""Chunks of sound from a microphone."""

from __future__ import annotations

from collections.abc import Generator, Mapping

import numpy as np

from ...graph.tensor import Array
from ..errors import SourceError
from ..runtime.streaming.stamped import Stamped
from .containers import decoded, import_av
from .reader import Reader, fed
from .sound import check_lengths


def read_microphone(
    device: str,
    chunk: int,
    feed: str | None = None,
    *,
    rate: int = 16_000,
    channels: int = 1,
    format: str = "alsa",
    options: Mapping[str, str] | None = None,
) -> Reader:
    """Read sound from a microphone, or another FFmpeg source, in chunks of one length.

    Parameters
    ----------
    device : str
        Its name, such as ``"default"``.
    chunk : int
        Samples of each item.
    feed : str, optional
        The input to which chunks are fed. By default, items are plain chunks, as `join` takes them.
    rate : int, default 16000
        Samples per second; the device's rate is converted.
    channels : {1, 2}
    format : str, default "alsa"
        The capture format: ``"alsa"`` or ``"pulse"`` on Linux, ``"avfoundation"`` on macOS.
    options : Mapping of str to str, optional
        For FFmpeg.

    Returns
    -------
    Reader
        Yields `Stamped` chunks: seconds of the first sample, by the device's clock, and a float32
        array of shape (chunk, channels). An incomplete chunk at the end is dropped.

    Raises
    ------
    SourceError
        If PyAV, the extra ``[video]``, is not installed, or a length is not a whole number of at
        least 1; while reading, if that fails.
    """
    import_av()
    check_lengths(chunk=chunk, rate=rate)
    if channels not in (1, 2):
        raise SourceError(f"channels is {channels!r}", fix="use 1 or 2")
    return Reader(_chunks(device, chunk, feed, rate, channels, format, options))


def _chunks(
    device: str,
    chunk: int,
    feed: str | None,
    rate: int,
    channels: int,
    format: str,
    options: Mapping[str, str] | None,
) -> Generator[Stamped, None, None]:
    resampler = import_av().AudioResampler(
        format="flt", layout="mono" if channels == 1 else "stereo", rate=rate
    )
    waiting: Array = np.empty((0, channels), np.float32)
    for frame in decoded(device, "audio", format, options):
        for part in resampler.resample(frame):
            samples = part.to_ndarray().reshape(-1, channels)
            waiting = np.concatenate([waiting, samples])
            # By the clock of the device as it is now: counted samples would drift away from it.
            end_s = part.time + len(samples) / rate
            while len(waiting) >= chunk:
                stamp = end_s - len(waiting) / rate
                yield Stamped(stamp, fed(feed, waiting[:chunk].copy()))
                waiting = waiting[chunk:]
