"""Exports: pages as files that other tools read."""
