"""Items on their way through a session, and the order in which they commit."""
