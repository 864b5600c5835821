"""Graphs, nodes and definitions of operators, and what is inferred, checked and printed of them."""
