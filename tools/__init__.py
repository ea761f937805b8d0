"""Build and check tools of the project; not part of the package."""
