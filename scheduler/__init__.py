"""The scheduler: when what runs. Partition, memory plan, execution, streams, profile."""
