"""Simulation: what a plan would do, on a clock that jumps from event to event."""
