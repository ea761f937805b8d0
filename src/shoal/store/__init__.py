"""Drivers that implement the store contracts of the packages. They contain no policy, with two exceptions.

The back-off of a host is computed in SQL (`sql/hosts.*.sql`), in the statement that stores it, because another
process may have recorded the same refusal meanwhile. And the frontiers themselves take suspects first and alone.
"""
