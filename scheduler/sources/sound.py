"""Chunks of sound, from files and from a microphone."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from itertools import count
from typing import Any

import numpy as np

from ...graph.values.extras import get_install_command, import_extra
from ...graph.values.tensor import Array
from ..errors import SourceError
from ..runtime.streaming.stamped import Stamped
from .containers import check_lengths, decode, import_av, translate_errors
from .reader import Reader, to_feed


def read_sound(
    path: str | os.PathLike[str],
    chunk: int,
    feed: str | None = None,
    *,
    hop: int | None = None,
    rate: int | None = None,
) -> Reader:
    """Read a sound file in chunks of one length.

    Parameters
    ----------
    path : str or path
        A file that libsndfile reads: WAV, FLAC, Ogg, MP3 and others.
    chunk : int
        Samples of each item.
    feed : str, optional
        The input to which chunks are fed. By default, items are plain chunks, as `join` takes them.
    hop : int, optional
        Samples from the beginning of one chunk to that of the next; `chunk` by default.
    rate : int, optional
        Samples per second that the file must have: nothing is converted.

    Returns
    -------
    Reader
        Yields `Stamped` chunks: seconds from the beginning of the file to the first sample, and a
        float32 array of shape (chunk, channels), from -1 to 1. The last chunk is padded with zeros.

    Raises
    ------
    SourceError
        If soundfile, the extra ``[audio]``, is not installed, or the lengths are invalid; while
        reading, if that fails, or the file has another rate.
    """
    soundfile = import_extra(
        "soundfile", "soundfile is not installed", get_install_command("audio"), SourceError
    )
    hop = chunk if hop is None else hop
    check_lengths(chunk=chunk, hop=hop, rate=1 if rate is None else rate)
    if hop > chunk:
        raise SourceError(f"hop is {hop:,}, longer than a chunk", fix=f"use {chunk:,} at most")
    return Reader(_read_chunks(soundfile, os.fspath(path), chunk, feed, hop, rate))


def _read_chunks(
    soundfile: Any, path: str, chunk: int, feed: str | None, hop: int, rate: int | None
) -> Generator[Stamped, None, None]:
    with translate_errors(f"{path} cannot be read"):
        opened = soundfile.SoundFile(path)  # a TypeError for raw samples, which have no rate
    with opened as file:
        if rate not in (None, file.samplerate):
            raise SourceError(
                f"{path} has {file.samplerate:,} samples per second, not {rate:,}",
                fix="convert it, or read it as it is",
            )
        blocks = file.blocks(
            chunk, overlap=chunk - hop, dtype="float32", always_2d=True, fill_value=0.0
        )
        for number in count():
            with translate_errors(f"{path} cannot be read"):
                block = next(blocks, None)
                stamp_s = number * hop / file.samplerate
            if block is None:
                return
            # A copy: the block's end is the beginning of the next one.
            yield Stamped(stamp_s, to_feed(feed, block.copy()))


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
        If PyAV, the extra ``[video]``, is not installed, or a number is not a positive
        integer; while reading, if that fails.
    """
    import_av()
    check_lengths(chunk=chunk, rate=rate)
    if channels not in (1, 2):
        raise SourceError(f"channels is {channels!r}", fix="use 1 or 2")
    return Reader(_record_chunks(device, chunk, feed, rate, channels, format, options))


def _record_chunks(
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
    for frame, _ in decode(device, "audio", format, options):
        with translate_errors(f"sound of {device} cannot be converted"):
            parts = resampler.resample(frame)
        for part in parts:
            samples = part.to_ndarray().reshape(-1, channels)
            waiting = np.concatenate([waiting, samples])
            # By the clock of the device as it is now: counted samples would drift away from it.
            end_s = part.time + len(samples) / rate
            while len(waiting) >= chunk:
                stamp = end_s - len(waiting) / rate
                yield Stamped(stamp, to_feed(feed, waiting[:chunk].copy()))
                waiting = waiting[chunk:]
