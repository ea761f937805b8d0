"""Benchmarks of Shoal. Each prints a table; none fails because of a measured time."""
