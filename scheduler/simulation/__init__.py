"""Simulation of plans, on a clock that jumps from event to event."""
