"""Costs: how long nodes and copies take, by a model or as measured."""
