"""Image files of a folder, as bytes: what decodes them is a node, which may be on a worker."""

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
        The input that files are fed to. When left out, items are files alone, as `join` has them.
    pattern : str, default "*"
        Which files, such as ``"*.jpg"``, or ``"**/*.jpg"`` for those of folders in there, too.

    Returns
    -------
    Reader
        Of `Stamped` files: their number as key, and their bytes as a uint8 array of shape (n,).

    Raises
    ------
    SourceError
        While it is read, if there is no such folder or no such file, or a file cannot be read.
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
