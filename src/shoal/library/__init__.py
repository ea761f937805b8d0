"""The Python API: crawls, stored crawls and single pages, in the process of the caller."""
