"""Simulation: what a plan would do, on a virtual clock."""
