"""Requests to a running walker from its process, and the event that wakes its commit loop."""

import asyncio


class WalkerRequests:
    """Requests to one walker: hand the job back, commit soon, or end with an error.

    It exists before the engine does, so a request that arrives while a walker starts is not lost. All methods are
    called in the event loop of the walker.
    """

    def __init__(self) -> None:
        self.hand_back_reason: str | None = None  # settle what finished and leave the rest to another walker
        self.is_nudged = False  # commit now: the crawl may have been paused, stopped or changed
        self.error: Exception | None = None  # the first error of a callback; the engine's own task raises it
        self._event = asyncio.Event()

    def hand_back(self, reason: str) -> None:
        """Ask the walker to settle what it has and to return its job."""
        self.hand_back_reason = reason
        self._event.set()

    def nudge(self) -> None:
        """Ask for a commit, whose answer says what the crawl's state is."""
        self.is_nudged = True
        self._event.set()

    def fail(self, error: Exception) -> None:
        """End the walker with this error.

        Callbacks of the event loop report their errors here: raised there, they would leave a URL that is never
        settled.
        """
        self.error = self.error or error
        self._event.set()

    def wake(self) -> None:
        """Make the commit loop check whether the next commit is due."""
        self._event.set()

    async def wait(self, longest_seconds: float) -> None:
        """Wait until something wakes the commit loop, for at most this long."""
        self._event.clear()
        timer = asyncio.get_running_loop().call_later(longest_seconds, self._event.set)
        try:
            await self._event.wait()
        finally:
            timer.cancel()
