"""The variables of a session: their values, the order of assignments, and files of values."""
