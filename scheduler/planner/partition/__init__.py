"""Partition: the device of each node, and the resulting subgraphs."""
