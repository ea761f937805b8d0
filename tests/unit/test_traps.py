"""Detection of traps, and the memory of URL patterns in a walker."""

from shoal.base.url import Url
from shoal.crawl.frontier.fates import LONGEST_PATTERN, MOST_TEXTS, REPEATS, TrapState, TrapWatch, pattern_of

URL = Url("http://example.org/calendar?month=1")
SAME = 5  # the hash of a text


def repeat(watch: TrapWatch, times: int) -> list[str | None]:
    return [watch.notice(URL, SAME) for _ in range(times)]


def test_a_pattern_is_reported_until_the_store_knows_it() -> None:
    """The first word of it may be lost with a commit."""
    watch, pattern = TrapWatch(), pattern_of(URL)
    assert repeat(watch, REPEATS) == [None] * REPEATS
    assert repeat(watch, 2) == [pattern, pattern]
    watch.learn({pattern: TrapState.QUARANTINED})
    assert repeat(watch, 2) == [None, None]


def test_repeats_are_forgotten_with_the_texts_that_were_repeated() -> None:
    watch = TrapWatch()
    repeat(watch, REPEATS)
    for text in range(MOST_TEXTS):
        watch.notice(Url("http://example.org/other"), SAME + 1 + text)
    assert repeat(watch, 3) == [None, None, None]


def test_a_pattern_is_never_longer_than_an_index_entry_of_postgresql() -> None:
    assert len(pattern_of(Url("http://example.org/" + "a/" * 30_000))) == LONGEST_PATTERN
