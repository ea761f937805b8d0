"""Drivers that implement the store contracts of the packages. They contain no policy."""
