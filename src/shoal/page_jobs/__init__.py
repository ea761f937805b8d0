"""Page jobs, one URL each: groups, leasing, fetching, the bot operations, and the ingest of results."""
