"""From a request to a plan: simplified, partitioned, placed, laid out in memory."""
