"""The decoder of images as an operator, which runs wherever its node is planned."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np

from ...graph.extras import how_to_install, import_extra
from ...graph.python import operator
from ...graph.tensor import Array, TensorSpec
from ..errors import SourceError


def _pixels(data: TensorSpec, *, height: int, width: int) -> TensorSpec:
    return TensorSpec("uint8", (height, width, 3))


@operator(_pixels, inputs=[TensorSpec("uint8", ("nbytes",))], name="sources.decode_image")
def decode_image(data: Array, *, height: int, width: int) -> Array:
    """Decode an image file of any format that Pillow knows, upright, and scale it to one size.

    Parameters
    ----------
    data : uint8 array of shape (nbytes,)
        The file's content.
    height, width : int
        The size to which the image is scaled, bilinearly, unless it has that size.

    Returns
    -------
    uint8 array of shape (height, width, 3)
        Red, green and blue.

    Raises
    ------
    SourceError
        If the file is not an image; or Pillow, the extra ``[images]``, is not installed where the
        node runs.
    OSError
        If the file is damaged. An item fails with a KernelError that has this as its cause.

    Examples
    --------
    ::

        image = b.call(pl.sources.decode_image, b.input("file", "uint8", ("nbytes",)),
                       height=224, width=224, name="decode")
        plan = pl.plan(b.build(), ["cpu", "worker:0..1"], pin={"decode": "worker:0..1"})
    """
    _, images, operations = map(_import_pillow, ("PIL", "PIL.Image", "PIL.ImageOps"))
    try:
        image = images.open(BytesIO(data.tobytes()))
    except images.UnidentifiedImageError as error:
        raise SourceError("this is not an image of a format that Pillow knows") from error
    with image:
        upright = operations.exif_transpose(image).convert("RGB")
    if upright.size != (width, height):
        upright = upright.resize((width, height), images.Resampling.BILINEAR)
    return np.asarray(upright)


def _import_pillow(module: str) -> Any:
    return import_extra(module, "Pillow is not installed", how_to_install("images"), SourceError)
