"""PyTorch's exported programs, read through PyTorch's own exporter to ONNX."""
