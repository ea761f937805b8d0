"""Turns of walkers with random outcomes, for tests that run operations in any order."""

import random

from shoal.crawl.frontier.values import FrontierTask, Settled, Turn
from tests.contract.conftest import Walker, failed, fetched, later


class RandomTurns:
    """Commits random turns for the walkers of one crawl."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._found = 0

    async def run(self, walker: Walker, *, grow: bool) -> Turn:
        """Settle some of what the walker holds, add links and take more; without `grow`, settle all of it as fetched
        and add nothing. A URL that killed its walkers fails without another attempt, as in the engine."""
        done = [self._outcome(task, grow) for task in walker.held if not grow or self._dice.random() < 0.7]
        has_pages = any(one.page is not None for one in done)  # only pages have links
        found = self._dice.randint(0, 2) if grow and has_pages else 0
        links = [walker.link(f"/{self._found + place}") for place in range(found)]
        self._found += found
        turn = await walker.turn(*done, found=links, want=self._dice.randint(0, 3) if grow else 10)
        if killers := [failed(task) for task in walker.held if task.is_killer]:
            turn = await walker.turn(*killers)
        return turn

    def _outcome(self, task: FrontierTask, grow: bool) -> Settled:
        return self._dice.choice([fetched, fetched, failed, lambda one: later(one, 5)])(task) if grow else fetched(task)
