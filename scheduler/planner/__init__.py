"""The planner: converts a request to a plan."""
