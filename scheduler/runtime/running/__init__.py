"""Items are started on slots, run to their ends, and run again after a loss."""
