"""Streams: items brought to their slots while there is room, results handed out to a consumer."""
