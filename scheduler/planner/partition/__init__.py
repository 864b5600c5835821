"""Partition: which device runs which node, and the subgraphs that follow."""
