"""Small video, sound and image files whose content is known."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
RATE = 8000


def write_video(path: Path, shades: Iterable[int], stamps_ms: Iterable[int]) -> Path:
    """Write frames of one shade of grey each, without loss, each to be shown at its time."""
    import av

    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = 32, 16, "bgr0"
        stream.codec_context.time_base = Fraction(1, 1000)
        for shade, stamp in zip(shades, stamps_ms, strict=True):
            frame = av.VideoFrame.from_ndarray(np.full((16, 32, 3), shade, np.uint8), "rgb24")
            frame.pts, frame.time_base = stamp, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def write_sound(path: Path, samples: Array) -> Path:
    """Write samples from -1 to 1, of shape (n, channels), without loss."""
    import soundfile

    soundfile.write(path, samples, RATE, subtype="FLOAT")
    return path


def write_image(path: Path, pixels: Array) -> Path:
    from PIL import Image

    Image.fromarray(pixels).save(path)
    return path
