"""Shapes: those that are known, their bounds, and the points where values decide them."""
