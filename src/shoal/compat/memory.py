"""The in-memory queue, which does not survive its process; and URL parsing for all three queues."""

from collections import deque
from collections.abc import Iterable
from urllib.parse import urljoin, urlparse

from shoal.base.url import Url, UrlRefusal, canonical

EMPTY = "URL queue is empty"


class UrlQueueManager:
    """A FIFO queue; each URL once, none deeper than `max_depth`."""

    def __init__(self, seeds: list[str], *, max_depth: int = 3) -> None:
        self.max_depth = max_depth
        self._queue: deque[tuple[Url, int]] = deque()
        self._seen: set[Url] = set()
        self._processed: set[Url] = set()
        for seed in seeds:
            self.add(seed)

    def add(self, url: str, parent_url: str | None = None, depth: int = 0) -> bool:
        """Add a URL; return False if it is invalid, known or too deep."""
        found = url_of(url, parent_url)
        if found is None or depth > self.max_depth or found in self._seen:
            return False
        self._seen.add(found)
        self._queue.append((found, depth))
        return True

    def next(self) -> str:
        """Return the next URL; raises IndexError if there is none."""
        if not self._queue:
            raise IndexError(EMPTY)
        url, _ = self._queue.popleft()
        self._processed.add(url)
        return url

    def has_next(self) -> bool:
        return bool(self._queue)

    def get_statistics(self) -> dict[str, int]:
        return {"queued": len(self._queue), "seen": len(self._seen), "processed": len(self._processed)}


def url_of(url: str, parent_url: str | None = None) -> Url | None:
    """Return the canonical URL, resolved against its parent if relative; None if it is invalid."""
    try:
        if parent_url and not urlparse(url).netloc:
            url = urljoin(parent_url, url)
    except ValueError:  # such as a malformed IPv6 address
        return None
    found = canonical(url)
    return None if isinstance(found, UrlRefusal) else found


def urls_of(seeds: Iterable[str]) -> list[Url]:
    """Return the valid URLs among the seeds, without duplicates."""
    found = [url for seed in seeds if (url := url_of(seed)) is not None]
    return list(dict.fromkeys(found))
