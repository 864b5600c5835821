"""The graph: what to compute. Knows no device, no trio, and runs no arrays but constants."""
