"""A sink that writes a file for each item, at a path that follows from its row."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from string import Formatter
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np

from ...graph.functions.function_digest import hash_function
from ...graph.values.errors import PlaitError
from ...graph.values.extras import get_install_command
from ...graph.values.tensor import Array, name_type
from ..errors import JobError
from .folders import is_sent_again, to_path, write_file
from .sinks import POSITION, Row, Sink, to_plain
from .sources import import_package

LONGEST = 240
"""Bytes of a name: drafts have longer ones."""
THREADS = 16
"""Each waits for the disk or a server."""


class Files(Sink):
    """A file for each item, in the format of its ending.

    ``.json`` files have the whole row; ``.npy``, images, sound, video and others the only entry
    that the template does not name: an array, bytes or text. A file that is there is replaced.

    Parameters
    ----------
    path : str or callable
        A template such as ``"out/{id}.json"``, with entries of the row in braces, or a function
        that returns the path of a row. Either may be a URL.
    rate : int, default 16000
        Samples per second of sound: arrays of shape (n,) or (n, channels).
    frames_per_second : int, default 25
        Of videos: uint8 arrays of shape (n, height, width, 3).

    Raises
    ------
    JobError
        If the template names no entry.
    """

    def __init__(
        self, path: str | Callable[[Row], Any], *, rate: int = 16_000, frames_per_second: int = 25
    ) -> None:
        self._path, self._rates = path, (rate, frames_per_second)
        if callable(path):
            self._names, self.digest = {POSITION}, hash_function(path)
            return
        try:
            fields = [field for _, field, *_ in Formatter().parse(path) if field]
        except ValueError as error:
            raise JobError(f"the path {path!r} is not a template: {error}", fix=_EXAMPLE) from error
        if not fields:
            raise JobError(f"all files would be called {path!r}", fix=_EXAMPLE)
        self.at_least_once = path.startswith(("http://", "https://"))
        self._names = {POSITION, *(re.split(r"[.[]", field)[0] for field in fields)}
        self.digest = f"{path} {self._rates}"

    def encode(self, row: Row) -> tuple[Path, bytes]:
        made = self._path(row) if callable(self._path) else _Names().vformat(self._path, (), row)
        path = to_path(made)
        if "\0" in str(path) or not 0 < len(os.fsencode(path.name)) <= LONGEST:
            raise JobError(f"a file cannot be called {str(path)!r:.100}", fix="choose another path")
        if is_sent_again(path) > self.at_least_once:
            raise JobError(f"a function named {path}", fix="give URLs of HTTP by a template")
        if path.suffix == ".json":
            return path, msgspec.json.encode(row, enc_hook=to_plain)
        values = {name: value for name, value in row.items() if name not in self._names}
        if len(values) != 1:
            what = (
                f"a {path.suffix} file has one value, and the row has {', '.join(values) or 'none'}"
            )
            raise JobError(what, fix="name the others in the template, or write .json files")
        return path, self._encode(path, *values.values())

    def _encode(self, path: Path, value: Any) -> bytes:
        if isinstance(value, str | bytes | bytearray):
            return value.encode() if isinstance(value, str) else bytes(value)
        with TemporaryDirectory() as folder:  # libraries know formats by the ending
            file = Path(folder, f"file{path.suffix}")
            try:
                self._save(file, np.asarray(value))
            except PlaitError:  # a library is missing
                raise
            except Exception as error:
                what = f"{name_type(value)} makes no {file.suffix} file"
                raise JobError(what, fix="write .npy or .json files, or return bytes") from error
            return file.read_bytes()

    def _save(self, file: Path, array: Array) -> None:
        if file.suffix == ".npy":
            np.save(file, array, allow_pickle=False)
        elif array.dtype == np.uint8 and array.ndim == 4:
            _save_video(file, array, self._rates[1])
        elif array.dtype == np.uint8 and array.ndim in (2, 3):
            images = import_package("PIL.Image", "Pillow", get_install_command("images"))
            images.fromarray(array).save(file)
        elif array.dtype.kind in "fi" and array.ndim in (1, 2):
            sound = import_package("soundfile", install=get_install_command("audio"))
            sound.write(file, array, self._rates[0])
        else:
            raise ValueError("no format of images, sound or video")

    def pack(self, rows: list[Any]) -> Any:
        """Write the files of all rows; of several rows with one path, the last wins."""
        files = dict(rows)
        with ThreadPoolExecutor(THREADS) as threads:
            list(
                threads.map(lambda one: write_file(one[0], [one[1]], draft="draft"), files.items())
            )
        self.nbytes += sum(map(len, files.values()))


_EXAMPLE = 'name an entry of each row, such as "out/{position}.json"'


class _Names(Formatter):
    """Fills in entries of a row, which cannot choose another folder."""

    def get_value(self, key: Any, args: Any, kwargs: Any) -> Any:
        if key in kwargs:
            return kwargs[key]
        what = f"the row has no {key!r}, but {', '.join(kwargs)}"
        raise JobError(what, fix="name one of these; carry= copies entries of the item")

    def format_field(self, value: Any, format_spec: str) -> str:
        text = str(super().format_field(value, format_spec))
        if text in ("", ".", "..") or re.search(r"[/\\\0]|://", text):
            raise JobError(
                f"{text!r:.100} cannot be part of a file's name", fix="choose another entry"
            )
        return text


def _save_video(file: Path, frames: Array, rate: int) -> None:
    av = import_package("av", "PyAV", get_install_command("video"))
    with av.open(file, "w", options={"fflags": "+bitexact"}) as container:
        # One thread: the bytes do not depend on the number of cores.
        stream = container.add_stream(container.default_video_codec, rate, options={"threads": "1"})
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, "rgb24")))
        container.mux(stream.encode())
