"""The watch over the loop of `shoal crawl`: it reports once which page blocks the loop, and ignores a stopped
process."""

import threading

from shoal.base.clock import SystemClock
from shoal.process.lifetime import StallWatch


async def test_a_page_that_blocks_the_loop_is_named_with_the_way_to_go_on() -> None:
    said: list[str] = []
    heard = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        heard.set()

    def block(url: str) -> bool:
        return bool(url) and heard.wait(20)

    with StallWatch(0.2, "shoal crawl --resume x", SystemClock(), say):
        assert block("http://a.example/endless")
    [text] = said
    assert text.startswith("http://a.example/endless has blocked the crawl for more than 0.2 s")
    assert "`shoal crawl --resume x`" in text


def new_watch() -> tuple[StallWatch, float]:
    clock = SystemClock()
    watch = StallWatch(8.0, "", clock, lambda text: None)
    return watch, clock.monotonic()


def test_a_stall_is_reported_once() -> None:
    watch, now = new_watch()
    assert [watch.is_stalled(now + seconds) for seconds in range(1, 15, 2)] == [False] * 4 + [True] + [False] * 2


def test_a_process_that_was_stopped_is_not_a_stall() -> None:
    watch, now = new_watch()
    assert [watch.is_stalled(now + seconds) for seconds in (2, 1002, 1004, 1008)] == [False] * 4
    assert watch.is_stalled(now + 1011)
