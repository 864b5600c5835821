"""Items under way: sessions run plans, stream items and bring back lost devices."""
