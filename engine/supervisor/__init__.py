"""The process that owns one run: an asyncio shell around the pure core."""
