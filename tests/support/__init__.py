"""Support code for tests, benchmarks and chaos runs: real servers, test sites and checkers."""
