"""PyTorch's exported programs, read by way of PyTorch's own exporter to ONNX."""
