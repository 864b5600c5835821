"""What plans consist of: data that planning yields, and running and reports read."""
