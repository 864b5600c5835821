"""LightNet's formats: models in JSON or their text form, weights in text."""

from __future__ import annotations

from .load import is_lightnet, load_lightnet
from .weights import dump_weights, read_weights
from .writer import dump_lightnet, save_lightnet

__all__ = [
    "dump_lightnet",
    "dump_weights",
    "is_lightnet",
    "load_lightnet",
    "read_weights",
    "save_lightnet",
]
