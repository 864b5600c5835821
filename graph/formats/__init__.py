"""File formats, each written and read: `.plait`, ONNX models, and safetensors for weights.

Functions that read get `at`, the place in a file or graph that errors name, most often last.
"""
