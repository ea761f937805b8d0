"""Page jobs, each for one URL: groups, leasing, fetching, the operations of bots, and the ingest of results."""
