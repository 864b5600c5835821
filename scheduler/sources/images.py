"""Image files of a folder, as bytes; a node decodes them, possibly on a worker."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import numpy as np

from ..errors import SourceError
from ..runtime.streaming.stamped import Stamped
from .reader import Reader, fed


def read_image_files(
    folder: str | os.PathLike[str], feed: str | None = None, *, pattern: str = "*"
) -> Reader:
    """Read the files of a folder in the order of their names, for `decode_image`.

    Parameters
    ----------
    folder : str or path
    feed : str, optional
        The input to which files are fed. By default, items are plain files, as `join` takes them.
    pattern : str, default "*"
        Which files to read, such as ``"*.jpg"``, or ``"**/*.jpg"`` to include subfolders.

    Returns
    -------
    Reader
        Yields `Stamped` files: their number as key, and their bytes as a uint8 array of shape (n,).

    Raises
    ------
    SourceError
        While reading, if there is no such folder or no such file, or a file cannot be read.
    """
    return Reader(_files(Path(folder), feed, pattern))


def _files(folder: Path, feed: str | None, pattern: str) -> Generator[Stamped, None, None]:
    if not folder.is_dir():
        raise SourceError(f"{folder} is not a folder", fix="pass the folder that has the images")
    paths = sorted(path for path in folder.glob(pattern) if path.is_file())
    if not paths:
        raise SourceError(f"{folder} has no file {pattern}", fix="pass another pattern=")
    for number, path in enumerate(paths):
        try:
            content = path.read_bytes()
        except OSError as error:
            raise SourceError(
                f"{path} cannot be read: {error.strerror}", fix="see that it is there"
            ) from error
        yield Stamped(number, fed(feed, np.frombuffer(content, np.uint8)))
