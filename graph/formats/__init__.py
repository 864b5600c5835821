"""File formats, each written and read: `.plait`, ONNX models, and safetensors for weights."""

from typing import TYPE_CHECKING

from ...lazily import lazily

if TYPE_CHECKING:
    from .checkpoints import Checkpoint, Checkpoints
    from .definitions import load_operators
    from .freezing import freeze
    from .graphs import load, save
    from .native import dump_bytes, load_bytes, load_native
    from .onnx import load_onnx, save_onnx, to_onnx
    from .registry import Format, register_format, unregister_format
    from .rules import load_rules
    from .weights import load_weights, save_weights, weights_of, with_weights

__all__ = [
    "Checkpoint",
    "Checkpoints",
    "Format",
    "dump_bytes",
    "freeze",
    "load",
    "load_bytes",
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
        ".checkpoints": "Checkpoint Checkpoints",
        ".definitions": "load_operators",
        ".freezing": "freeze",
        ".graphs": "load save",
        ".native": "dump_bytes load_bytes load_native",
        ".onnx": "load_onnx save_onnx to_onnx",
        ".registry": "Format register_format unregister_format",
        ".rules": "load_rules",
        ".weights": "load_weights save_weights weights_of with_weights",
    },
)
