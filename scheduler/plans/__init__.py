"""Data of plans: planning yields it, runtime and reports read it."""
