"""Token scopes, the format of tokens, and the login throttle."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.access.limits import MOST_FAILURES, MOST_PLACES, SECONDS_EACH, AuthThrottle, client_network
from shoal.access.token import Caller, TokenScope, allows, hash_of, may_give, mint, read_token
from shoal.base.clock import FakeClock
from shoal.base.errors import NotAllowed, RateLimited
from shoal.base.text import clean

HERE = "192.0.2.1"


def test_admin_includes_write_and_write_includes_read_and_nobody_includes_a_bot() -> None:
    opened = {scope: [one.value for one in TokenScope if allows(frozenset({scope}), one)] for scope in TokenScope}
    assert opened == {
        "read": ["read"],
        "write": ["read", "write"],
        "admin": ["read", "write", "admin"],
        "bot": ["bot"],
        "node": ["node"],
    }


def test_only_an_admin_may_create_tokens_with_scopes_it_lacks() -> None:
    assert may_give(frozenset({TokenScope.ADMIN}), TokenScope.BOT)
    assert not may_give(frozenset({TokenScope.WRITE}), TokenScope.BOT)
    assert may_give(frozenset({TokenScope.BOT}), TokenScope.BOT)


def test_a_caller_without_any_scope_may_do_nothing() -> None:
    with pytest.raises(NotAllowed, match="this needs the scope read, but the token has none"):
        Caller(who="x", scopes=frozenset()).demand(TokenScope.READ)


def test_tokens_are_unique_and_their_text_contains_their_id() -> None:
    made = [mint() for _ in range(100)]
    assert len({text for _, text in made}) == len({token_id for token_id, _ in made}) == 100
    for token_id, text in made:
        assert read_token(text) == token_id
        assert text.startswith(f"shl_{token_id.removeprefix('tok_')}_")
        assert len(text.split("_")[2]) * 5 >= 192


@given(st.integers(0, 61), st.sampled_from("0123456789abcdefghjkmnpqrstvwxyz_ \n"))
def test_a_mistyped_token_is_known_without_asking_anybody(place: int, character: str) -> None:
    _, text = mint()
    typed = text[:place] + character + text[place + 1 :]
    assert typed == text or read_token(typed) is None


@given(st.text(max_size=100))
def test_any_text_is_a_token_or_not(text: str) -> None:
    assert read_token(text) is None
    assert len(hash_of(text)) == 64


def test_a_token_in_any_sentence_is_hidden() -> None:
    _, text = mint()
    assert text.split("_")[2] not in clean(f"what of {text}, or 'shl={text}'?")


def test_failures_fill_a_bucket_that_leaks() -> None:
    clock = FakeClock()
    failures = AuthThrottle(clock)
    assert [failures.count(HERE) for _ in range(MOST_FAILURES)] == [False] * (MOST_FAILURES - 1) + [True]
    with pytest.raises(RateLimited) as caught:
        failures.check(HERE)
    assert caught.value.facts["retry_after_seconds"] == SECONDS_EACH
    failures.check("192.0.2.2")
    clock.jump(SECONDS_EACH)
    failures.check(HERE)
    failures.count(HERE)
    with pytest.raises(RateLimited):
        failures.check(HERE)
    clock.jump(MOST_FAILURES * SECONDS_EACH)
    for _ in range(MOST_FAILURES - 1):
        failures.count(HERE)
    failures.check(HERE)


def test_the_number_of_throttled_networks_is_bounded() -> None:
    failures = AuthThrottle(FakeClock())
    for number in range(MOST_PLACES + 10):
        failures.count(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(failures._empty_at) == MOST_PLACES


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2001:db8::1", "2001:db8::ffff:1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("x" * 200, "x" * 300),
    ],
)
def test_addresses_of_one_network_are_throttled_together(one: str, other: str) -> None:
    assert client_network(one) == client_network(other)
    assert client_network("2001:db8::1") != client_network("2001:db8:0:1::1")
