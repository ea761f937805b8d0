"""Page jobs: one URL each. Groups, leasing, fetching, bots, and the single ingest of results."""
