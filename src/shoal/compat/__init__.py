"""URL queues for callers that have one already: the names, arguments and answers that they know, on Shoal's store.

A scan is a crawl that no worker takes: whoever calls `next` fetches, and whether and how is the caller's business. What
`next` gives is leased and not popped, so that a process that dies loses nothing: its URL comes back to the next one.
"""

from shoal.compat.database import DatabaseUrlQueueManager
from shoal.compat.memory import UrlQueueManager
from shoal.compat.persistent import PersistentUrlQueueManager

__all__ = ["DatabaseUrlQueueManager", "PersistentUrlQueueManager", "UrlQueueManager"]
