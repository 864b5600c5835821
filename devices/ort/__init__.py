"""The ort device: whole subgraphs handed to ONNX Runtime."""
