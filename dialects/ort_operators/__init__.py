"""Operators that ONNX Runtime has beyond ONNX: `com.microsoft` and `ai.onnx.ml`."""
