"""What devices have in common whose driver queues work and tells by events how far it got."""
