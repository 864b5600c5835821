"""Items under way: started, executed, completed."""
