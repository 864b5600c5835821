"""Attributes of operators that a library brings to ONNX Runtime: kept as a model has them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...unknown_operators import EXTENSIONS_DOMAIN

ATTRIBUTES = "attributes"
"""The attribute that holds all others."""

_BYTES = "latin-1"
"""The encoding in which each byte is a letter."""


def is_extension_operator(op: str) -> bool:
    """True for the name of an operator of the library."""
    return op.rpartition(".")[0] == EXTENSIONS_DOMAIN


def held_attributes(protos: Iterable[Any]) -> dict[str, Any]:
    """Return AttributeProtos as the one attribute that plait has for them."""
    from onnx import NodeProto

    return {ATTRIBUTES: NodeProto(attribute=protos).SerializeToString().decode(_BYTES)}


def attributes_held(value: str) -> list[Any]:
    """Return the AttributeProtos again."""
    from onnx import NodeProto

    return list(NodeProto.FromString(value.encode(_BYTES)).attribute)
