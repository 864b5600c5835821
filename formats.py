"""The face of file formats: readers and writers of graphs, weights, operators and rules.

Examples
--------
>>> import plait as pl
>>> from plait.formats import dump_bytes, load_bytes
>>> b = pl.GraphBuilder("copy")
>>> b.output("y", b.op("Relu", b.input("x", "float32", (2,))))
>>> load_bytes(dump_bytes(b.build())).outputs
('y',)
"""

from typing import TYPE_CHECKING

from .lazily import lazily

if TYPE_CHECKING:
    from .dialects.lightnet.load import load_lightnet
    from .graph.formats.checkpoints import Checkpoint, Checkpoints
    from .graph.formats.definitions import load_operators
    from .graph.formats.freezing import freeze
    from .graph.formats.graphs import load, save
    from .graph.formats.native import dump_bytes, load_bytes, load_native
    from .graph.formats.onnx import load_onnx, save_onnx, to_onnx
    from .graph.formats.registry import Format, register_format, unregister_format
    from .graph.formats.rules import load_rules
    from .graph.formats.weights import load_weights, save_weights, weights_of, with_weights

__all__ = [
    "Checkpoint",
    "Checkpoints",
    "Format",
    "dump_bytes",
    "freeze",
    "load",
    "load_bytes",
    "load_lightnet",
    "load_native",
    "load_onnx",
    "load_operators",
    "load_rules",
    "load_weights",
    "register_format",
    "save",
    "save_onnx",
    "save_weights",
    "to_onnx",
    "unregister_format",
    "weights_of",
    "with_weights",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        ".dialects.lightnet.load": "load_lightnet",
        ".graph.formats.checkpoints": "Checkpoint Checkpoints",
        ".graph.formats.definitions": "load_operators",
        ".graph.formats.freezing": "freeze",
        ".graph.formats.graphs": "load save",
        ".graph.formats.native": "dump_bytes load_bytes load_native",
        ".graph.formats.onnx": "load_onnx save_onnx to_onnx",
        ".graph.formats.registry": "Format register_format unregister_format",
        ".graph.formats.rules": "load_rules",
        ".graph.formats.weights": "load_weights save_weights weights_of with_weights",
    },
)
