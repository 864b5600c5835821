"""Operators of ONNX Runtime beyond ONNX: `com.microsoft` and `ai.onnx.ml`."""
