"""Post-training quantization: ranges observed on items, products of floats made integer ones."""

from .accuracy import Accuracy
from .quantize import quantize
from .quantized import NodeCost, Quantized

__all__ = ["Accuracy", "NodeCost", "Quantized", "quantize"]
