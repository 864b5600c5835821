"""Images as inputs of a model that takes pixels: ``--input image=photo.jpg``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..graph.values.dtypes import kind_of
from ..graph.values.extras import get_install_command, import_extra
from ..graph.values.tensor import Array, Dim, TensorSpec
from .errors import CommandError

SUFFIXES = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"))
CHANNELS = {1: "L", 3: "RGB", 4: "RGBA"}
"""Modes of Pillow, by how many numbers a pixel has."""


def can_be_image(spec: TensorSpec) -> bool:
    """Return whether an input with `spec` may be an image: two to four dimensions of numbers."""
    return spec.rank in (2, 3, 4) and kind_of(spec.dtype) in "iuf"


def read_image(file: Path, name: str, spec: TensorSpec) -> Array:
    """Return the pixels of the image `file`, from 0 to 255, upright, laid out for an input.

    `name` and `spec` are those of the input. Raises CommandError if Pillow is not installed, the
    file cannot be read, its size is not the input's, or it is not clear where pixels lie in the
    input.
    """
    images = import_extra(
        "PIL.Image",
        f"{file} is an image, which Pillow reads",
        get_install_command("images"),
        CommandError,
    )
    operations = import_extra("PIL.ImageOps", "Pillow is damaged", "install it anew", CommandError)
    shape = spec.shape or ()
    layout, channels = _find_layout(name, spec)
    try:
        with images.open(file) as image:
            upright = operations.exif_transpose(image).convert(CHANNELS[channels])
    except Exception as error:  # Pillow raises of many kinds
        raise CommandError(f"cannot read {file}: {error}", fix="give an image") from error
    pixels = np.asarray(upright).reshape(upright.height, upright.width, channels)
    array = pixels.transpose(2, 0, 1) if layout == "CHW" else pixels
    if len(shape) == 2:
        array = array[:, :, 0]
    array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    lengths = zip(shape, array.shape, strict=True)
    if any(isinstance(own, int) and own != length for own, length in lengths):
        raise CommandError(
            f"{file} is {upright.width} x {upright.height} pixels, and input {name!r} is {spec}",
            fix="scale or crop it first, as the model was trained for",
        )
    return np.ascontiguousarray(array, spec.dtype)


def _find_layout(name: str, spec: TensorSpec) -> tuple[str, int]:
    """Return where channels lie in `spec`, of the input `name`, and how many there are."""
    shape: tuple[Dim, ...] = (spec.shape or ())[-3:]
    if len(shape) == 2:
        return "HWC", 1
    for layout, dim in (("CHW", shape[0]), ("HWC", shape[-1])):
        if isinstance(dim, int) and dim in CHANNELS:
            return layout, dim
    raise CommandError(
        f"input {name!r} is {spec}: which axis has the channels of an image is not known",
        fix=f"fix its shape, --shape {name}=1,3,224,224, or give a .npy file",
    )
