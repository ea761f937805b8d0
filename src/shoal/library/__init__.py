"""The Python API: crawls, stored crawls and single pages, in the caller's process."""
