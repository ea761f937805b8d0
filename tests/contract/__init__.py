"""Contract tests of the packages and their stores, run on every driver."""
