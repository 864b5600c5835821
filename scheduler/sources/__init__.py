"""Sources of items: video, sound and image files, cameras and microphones.

Most need an optional package, imported on first use. All yield items with stamps.

Examples
--------
>>> from tempfile import TemporaryDirectory
>>> import plait as pl
>>> with TemporaryDirectory() as folder:
...     for name in ("a.png", "b.png"):
...         with open(f"{folder}/{name}", "wb") as file:
...             _ = file.write(b"pixels")
...     for one in pl.sources.read_image_files(folder, "file"):
...         print(one.stamp, bytes(one.value["file"]))
0 b'pixels'
1 b'pixels'
"""

from typing import TYPE_CHECKING

from ...lazily import lazily

if TYPE_CHECKING:
    from .images import decode_image, read_image_files
    from .reader import Reader
    from .sound import read_microphone, read_sound
    from .video import read_video

__all__ = [
    "Reader",
    "decode_image",
    "read_image_files",
    "read_microphone",
    "read_sound",
    "read_video",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        ".images": "decode_image read_image_files",
        ".reader": "Reader",
        ".sound": "read_microphone read_sound",
        ".video": "read_video",
    },
)
