"""What tests, benchmarks and chaos runs stand on: real servers now, sites and checkers beside them."""
