"""Replicas: several devices that are alike in place of one, which items go to in turn.

A plan is made once, for the first device of each group. Its variants are the same plan on the other
devices: variant i takes the i-th member of every group, and begins again where a group is shorter.
"""
