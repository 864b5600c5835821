"""File formats, each written and read: `.plait`, ONNX models, and safetensors for weights."""
