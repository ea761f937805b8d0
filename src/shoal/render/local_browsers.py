"""The browsers of this process, whichever crawl or page job they belong to: counted, and restarted on request."""

from typing import Protocol
from weakref import WeakSet


class BrowserOwner(Protocol):
    """A part of this process that has browsers."""

    @property
    def browsers(self) -> int:
        """The number of browsers that run."""
        ...

    @property
    def active(self) -> int:
        """The number of pages in them."""
        ...

    async def restart(self) -> None:
        """Replace the browsers; no page in them counts a failed attempt."""
        ...


class LocalBrowsers:
    """All browsers of this process. An owner is forgotten when nothing else refers to it."""

    def __init__(self) -> None:
        self._owners: WeakSet[BrowserOwner] = WeakSet()

    def add(self, owner: BrowserOwner) -> None:
        self._owners.add(owner)

    @property
    def browsers(self) -> int:
        return sum(owner.browsers for owner in self._owners)

    @property
    def pages(self) -> int:
        """The number of pages in the browsers."""
        return sum(owner.active for owner in self._owners)

    async def restart(self) -> None:
        for owner in list(self._owners):
            await owner.restart()
