"""Pools of replicas: items are dealt to whole sessions on the hosts of a cluster."""
