"""Image files of a folder, as bytes; the operator that decodes them runs wherever it is planned."""

from __future__ import annotations

import os
from collections.abc import Generator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from ...graph.functions.python import operator
from ...graph.values.extras import get_install_command, import_extra
from ...graph.values.tensor import Array, TensorSpec
from ..errors import SourceError
from ..runtime.streaming.stamped import Stamped
from .containers import MOST_PIXELS, check_pixels, translate_errors
from .reader import Reader, to_feed


def read_image_files(
    folder: str | os.PathLike[str], feed: str | None = None, *, pattern: str = "*"
) -> Reader:
    """Read the files of `folder` in the order of their names, for `decode_image`.

    Parameters
    ----------
    feed : str, optional
        The input to which files are fed. By default, items are plain files, as `join` takes them.
    pattern : str, default "*"
        Which files to read, such as ``"*.jpg"``, or ``"**/*.jpg"`` to include subfolders.

    Returns
    -------
    Reader
        Yields `Stamped` files: numbers as keys, and the bytes as uint8 arrays of shape (n,).

    Raises
    ------
    SourceError
        While reading, if there is no such folder or no such file, or a file cannot be read.
    """
    return Reader(_list_files(Path(folder), feed, pattern))


def _list_files(folder: Path, feed: str | None, pattern: str) -> Generator[Stamped, None, None]:
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
        yield Stamped(number, to_feed(feed, np.frombuffer(content, np.uint8)))


_RASTER = (
    *("AVIF", "BMP", "DDS", "DIB", "GIF", "HEIF", "JPEG", "JPEG2000", "MPO", "PCX", "PNG", "PPM"),
    *("PSD", "QOI", "SGI", "SUN", "TGA", "TIFF", "WEBP"),
)
"""Formats of Pillow that hold pixels of the size that they claim.

Others run programs (EPS starts Ghostscript) or hold further files, whose sizes differ (ICO).
"""

_SPARE = 2
"""How many times as large as wanted a JPEG is decoded at least, so that scaling does not show."""


def _infer_pixels(data: TensorSpec, *, height: int, width: int, max_pixels: int) -> TensorSpec:
    return TensorSpec("uint8", (height, width, 3))


@operator(_infer_pixels, inputs=[TensorSpec("uint8", ("nbytes",))], name="sources.decode_image")
def decode_image(data: Array, *, height: int, width: int, max_pixels: int = MOST_PIXELS) -> Array:
    """Decode the image file `data`, upright, and scale it to `height` and `width`.

    Reads AVIF, BMP, DDS, GIF, JPEG, JPEG 2000, MPO, PCX, PNG, PPM, PSD, QOI, SGI, Sun, TGA, TIFF
    and WebP as far as Pillow does, and HEIF if a plugin is registered with Pillow.

    Parameters
    ----------
    data : uint8 array of shape (nbytes,)
        The file's content.
    height, width : int
        The size to which the image is scaled, bilinearly, unless it has that size. A JPEG that is
        more than four times as large is decoded at a half, a fourth or an eighth of its size.
    max_pixels : int, default 2**25
        How many pixels are decoded at most, which take some 8 bytes each: small files may hold
        large images.

    Returns
    -------
    uint8 array of shape (height, width, 3)
        Red, green and blue.

    Raises
    ------
    SourceError
        If the file is not an image of these formats, is damaged or too large; or Pillow, the extra
        ``[images]``, is not installed where the node runs. An item fails with a KernelError that
        has this as its cause.

    Examples
    --------
    ::

        image = b.call(pl.sources.decode_image, b.input("file", "uint8", ("nbytes",)),
                       height=224, width=224, name="decode")
        plan = pl.plan(b.build(), ["cpu", "worker:0..1"], pin={"decode": "worker:0..1"})
    """
    _, images, operations = map(_import_pillow, ("PIL", "PIL.Image", "PIL.ImageOps"))
    with translate_errors("this is not an image of a known format"):
        image = images.open(BytesIO(data.tobytes()), formats=_list_formats(images))
    with image, translate_errors("the image is damaged"):
        longest = _SPARE * max(height, width)  # of either side: it may lie on one
        image.draft("RGB", (longest, longest))
        check_pixels("the image", image.width, image.height, max_pixels)
        upright = operations.exif_transpose(image).convert("RGB")
    if upright.size != (width, height):
        upright = upright.resize((width, height), images.Resampling.BILINEAR)
    return np.asarray(upright)


def _list_formats(images: Any) -> list[str]:
    images.init()
    return [name for name in _RASTER if name in images.OPEN]


def _import_pillow(module: str) -> Any:
    return import_extra(
        module, "Pillow is not installed", get_install_command("images"), SourceError
    )
