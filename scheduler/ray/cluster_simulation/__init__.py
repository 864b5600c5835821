"""Pools of many hosts on paper: what they would do, and what is in their way."""
