"""Decisions about who is next, without a clock or a lock: sessions and simulations share them."""
