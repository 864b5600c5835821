"""ONNX models: read, every operator brought to its newest form, and written."""

from .load import is_onnx_model, load_onnx, read_model
from .writer import save_onnx, to_onnx

__all__ = ["is_onnx_model", "load_onnx", "read_model", "save_onnx", "to_onnx"]
