"""The worker device: another process over shared memory."""
