"""File formats, each written and read: `.plait`, ONNX models, and safetensors for weights.

Readers pass on `at`, the place in a file or graph that errors name.
"""
