"""When 503 responses concern the whole host."""

from shoal.hosts.throttle import ENOUGH, WITHIN_SECONDS, concern_host, with_refusals


def test_several_urls_within_a_minute_concern_the_host() -> None:
    refusals = with_refusals({}, range(ENOUGH - 1), 0, WITHIN_SECONDS)
    assert not concern_host(refusals)
    assert not concern_host(with_refusals(refusals, [0], 1, WITHIN_SECONDS)), "a URL counts once"
    assert concern_host(with_refusals(refusals, [9], 1, WITHIN_SECONDS))
    assert not concern_host(with_refusals(refusals, [9], WITHIN_SECONDS + 1, WITHIN_SECONDS)), "the others are too old"
