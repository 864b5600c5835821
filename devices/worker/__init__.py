"""The worker device: a process of its own, over shared memory."""
