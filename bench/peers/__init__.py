"""Adapters that let Shoal take part in benchmarks of other projects."""
