"""The robots.txt rules that a process remembers for a short time, in front of a slower source."""

import asyncio
from typing import Final

from shoal.base.clock import Clock
from shoal.hosts.robots import RobotsSource, Rules

FRESH_SECONDS: Final = 600.0  # for which the rules of a host are remembered
MOST_RULES: Final = 2_000  # hosts


class RobotsMemo:
    """Rules by origin; concurrent requests for the same host share one call to the source. Rules that could not be
    fetched are not remembered: the next caller tries again."""

    def __init__(self, source: RobotsSource, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._known: dict[str, tuple[float, Rules]] = {}
        self._loading: dict[str, asyncio.Task[Rules]] = {}

    def known(self, origin: str) -> Rules | None:
        """Return the remembered rules of a host; None if there are none."""
        at, rules = self._known.get(origin, (0.0, None))
        return None if rules is None or self._clock.monotonic() - at > FRESH_SECONDS else rules

    async def rules_of(self, origin: str) -> Rules:
        """Return the rules of a host. Raises what the source raises."""
        rules = self.known(origin)
        if rules is not None:
            return rules
        task = self._loading.get(origin)
        if task is None:
            task = self._loading[origin] = asyncio.create_task(self._load(origin))
            task.add_done_callback(lambda done: self._loaded(origin, done))
        return await asyncio.shield(task)  # a caller that gives up does not keep the others from getting them

    def close(self) -> None:
        for task in self._loading.values():
            task.cancel()
        self._known.clear()

    async def _load(self, origin: str) -> Rules:
        rules = await self._source.rules_of(origin)
        if rules.reachable:
            if len(self._known) >= MOST_RULES:
                self._known.clear()
            self._known[origin] = self._clock.monotonic(), rules
        return rules

    def _loaded(self, origin: str, task: asyncio.Task[Rules]) -> None:
        self._loading.pop(origin, None)
        if not task.cancelled():
            task.exception()  # if all callers gave up, nobody else looks at it
