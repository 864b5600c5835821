"""Builders and editors of graphs, and tensors with operators as methods."""
