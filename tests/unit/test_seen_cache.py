"""The cache of seen URLs: hits are exact, its size is bounded, and every URL gets its key."""

from shoal.base.url import Url
from shoal.crawl.engine.known_urls import MOST_EACH, SeenCache
from shoal.crawl.frontier.values import key_of
from shoal.pages.links import pack_key

SEED = 7


def urls(*numbers: int) -> list[Url]:
    return [Url(f"http://a.example/{number}") for number in numbers]


def keys(*numbers: int) -> list[bytes]:
    return [pack_key(key_of(url, SEED)[0]) for url in urls(*numbers)]


def add(known: SeenCache, found: list[Url], *, inside: bool = True) -> tuple[list[bytes], dict[Url, tuple[int, int]]]:
    return known.add(found, [inside] * len(found))


def test_an_added_url_is_known_from_then_on() -> None:
    known = SeenCache(SEED)
    assert add(known, urls(1, 2)) == (keys(1, 2), {url: key_of(url, SEED) for url in urls(1, 2)})
    assert add(known, urls(2, 3, 1)) == (keys(2, 3, 1), {url: key_of(url, SEED) for url in urls(3)})
    assert add(known, urls(3, 1)) == (keys(3, 1), {})


def test_looking_up_a_key_does_not_add_the_url() -> None:
    known = SeenCache(SEED)
    assert [known.packed(url) for url in urls(1)] == keys(1)
    assert set(add(known, urls(1))[1]) == set(urls(1))
    assert [known.packed(url) for url in urls(1)] == keys(1)


def test_the_last_two_generations_are_known_and_older_ones_are_not() -> None:
    known = SeenCache(SEED, inside=3)
    add(known, urls(1, 2, 3))
    assert add(known, urls(2, 4)) == (keys(2, 4), {url: key_of(url, SEED) for url in urls(4)})
    add(known, urls(5))  # the third URL of its generation: now 2, 4 and 5 are the old generation
    assert set(add(known, urls(1, 2))[1]) == set(urls(1))


def test_urls_out_of_scope_evict_no_urls_in_scope() -> None:
    known = SeenCache(SEED, inside=3, outside=3)
    add(known, urls(1, 2))
    add(known, urls(*range(10, 30)), inside=False)
    assert add(known, urls(1, 2)) == (keys(1, 2), {})
    found = urls(2, 29, 10)
    assert known.add(found, [True, False, False]) == (keys(2, 29, 10), {})
    add(known, urls(*range(30, 40)), inside=False)
    add(known, urls(*range(40, 50)), inside=False)
    assert set(known.add(found, [True, False, False])[1]) == set(urls(29, 10))


def test_fewer_urls_are_cached_if_they_are_long() -> None:
    known = SeenCache(SEED, inside=10)
    long = [Url(f"http://a.example/{number}/{'x' * 4 * MOST_EACH}") for number in range(9)]
    for url in long:
        add(known, [url])
    assert set(add(known, long[-1:])[1]) == set()
    assert set(add(known, long[:3])[1]) == set(long[:3])
