"""Sessions for callers without a trio loop: synchronous code and asyncio."""
