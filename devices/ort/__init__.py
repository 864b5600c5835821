"""The ort device, which runs whole subgraphs in ONNX Runtime."""
