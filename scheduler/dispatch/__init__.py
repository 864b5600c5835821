"""Decisions about the next item, without clocks and locks: sessions and simulations share them."""
