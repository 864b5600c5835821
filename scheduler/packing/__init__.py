"""Packing: offsets for blocks of which some may not overlap. Knows nothing of graphs."""
