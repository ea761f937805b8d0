"""When 503 responses concern the whole host."""

from shoal.hosts.refusals import ENOUGH, WITHIN, concern_host, with_refusals


def test_several_urls_within_a_minute_concern_the_host() -> None:
    refusals = with_refusals({}, range(ENOUGH - 1), 0, WITHIN)
    assert not concern_host(refusals)
    assert not concern_host(with_refusals(refusals, [0], 1, WITHIN)), "a URL counts once"
    assert concern_host(with_refusals(refusals, [9], 1, WITHIN))
    assert not concern_host(with_refusals(refusals, [9], WITHIN + 1, WITHIN)), "the others are too old"
