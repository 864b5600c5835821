"""Sessions for callers that run no trio loop: synchronous code and asyncio."""
