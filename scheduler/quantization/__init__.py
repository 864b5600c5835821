"""Post-training quantization: observes ranges on items, makes float products integer ones."""

from .accuracy import Accuracy
from .quantize import quantize
from .quantized import NodeCost, Quantized

__all__ = ["Accuracy", "NodeCost", "Quantized", "quantize"]
