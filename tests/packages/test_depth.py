"""The depth of a page is that of the first path found; with one fetch at a time it is the shortest."""

import random
from dataclasses import dataclass, field
from typing import Any

from tests.packages.conftest import Answer, Crawler, ScriptedSite, html, serving

PAGES = 300
LINKS = 3


def tangle() -> dict[str, list[str]]:
    """Pages that link to random other pages."""
    dice = random.Random(7)
    paths = ["/", *(f"/{number}" for number in range(1, PAGES))]
    return {path: dice.sample(paths, LINKS) for path in paths}


def shortest(links: dict[str, list[str]], most: int) -> dict[str, int]:
    depths, level = {"/": 0}, ["/"]
    for depth in range(1, most + 1):
        level = list(dict.fromkeys(link for path in level for link in links[path] if link not in depths))
        depths |= dict.fromkeys(level, depth)
    return depths


@dataclass
class UnevenSite(ScriptedSite):
    """Every seventh page is slow."""

    script: Any = None
    links: dict[str, list[str]] = field(default_factory=tangle)

    def __post_init__(self) -> None:
        self.script = self.answer

    def answer(self, path: str) -> Answer:
        self.seconds = 0.0 if int(path.strip("/") or 0) % 7 else 0.08
        return html(path, *self.links[path])


async def test_one_fetch_at_a_time_finds_the_shortest_paths(crawler: Crawler) -> None:
    async with serving(UnevenSite()) as site:
        seen = await crawler.crawl(site, depth=8, concurrency=1, robots="ignore")
    pages = await crawler.pages(seen)
    assert {f"/{path.strip('/')}": page.depth for path, page in pages.items()} == shortest(site.links, 8)
