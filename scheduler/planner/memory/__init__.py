"""Memory: which tensors share bytes, and the offset of each, before the first run."""

from .virtual_pool import VirtualPool

__all__ = ["VirtualPool"]
