"""Memory: which tensors share bytes, and the offset of each, before the first run."""
