"""LightNet's formats: models in JSON or their text form, weights in text.

A rule for reading gets only `op`, an operator of the file, and writes its nodes. A rule for writing
gets `document` and `node`, and adds operators to the document.
"""

from typing import TYPE_CHECKING

from ...lazily import lazily

if TYPE_CHECKING:
    from .load import load_lightnet
    from .weights import dump_weights, read_weights
    from .writer import dump_lightnet, save_lightnet

__all__ = ["dump_lightnet", "dump_weights", "load_lightnet", "read_weights", "save_lightnet"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        ".load": "load_lightnet",
        ".weights": "dump_weights read_weights",
        ".writer": "dump_lightnet save_lightnet",
    },
)
