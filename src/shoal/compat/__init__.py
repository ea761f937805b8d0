"""URL queues with the names, arguments and return values of existing callers, on Shoal's store.

A scan is a crawl that workers do not lease: the caller of `next` fetches the URL by itself. `next` leases a URL instead
of popping it, so a process that dies loses nothing: its URL is returned again.
"""

from shoal.compat.queues import DatabaseUrlQueueManager, PersistentUrlQueueManager, UrlQueueManager

__all__ = ["DatabaseUrlQueueManager", "PersistentUrlQueueManager", "UrlQueueManager"]
