"""What the project needs to build and check itself; not part of the package."""
