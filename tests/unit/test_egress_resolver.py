"""The resolver: concurrent requests share one lookup, results are cached, failures are values."""

import asyncio
import socket
import threading
from collections import Counter
from datetime import timedelta

import pytest

from shoal.base.clock import FakeClock, SystemClock
from shoal.egress import Failure, Resolver
from shoal.egress import resolver as resolver_module
from shoal.egress.resolver import Answer, system_lookup


class Names:
    """A name server that counts, and that can be made to wait."""

    def __init__(self, answers: dict[str, tuple[str, ...]] | None = None) -> None:
        self.answers = answers or {}
        self.asked: Counter[str] = Counter()
        self.go = threading.Event()
        self.go.set()

    def __call__(self, host: str) -> tuple[str, ...]:
        self.asked[host] += 1
        self.go.wait(10)
        if host not in self.answers:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return self.answers[host]


def ask(resolver: Resolver, host: str) -> "asyncio.Future[Answer]":
    future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    resolver.resolve(host, future.set_result)
    return future


async def test_everybody_who_asks_at_once_shares_one_lookup() -> None:
    names = Names({"site.test": ("192.0.2.1", "192.0.2.2")})
    names.go.clear()
    resolver = Resolver(FakeClock(), lookup=names)
    answers = [ask(resolver, "site.test") for _ in range(5)]
    names.go.set()
    assert set(await asyncio.gather(*answers)) == {("192.0.2.1", "192.0.2.2")}
    assert names.asked["site.test"] == 1
    resolver.close()


async def test_an_answer_is_asked_for_again_when_it_is_old() -> None:
    clock, names = FakeClock(), Names({"site.test": ("192.0.2.1",)})
    resolver = Resolver(clock, lookup=names, ttl=timedelta(seconds=60))
    for wait, lookups in ((0, 1), (59, 1), (2, 2)):
        clock.jump(wait)
        await ask(resolver, "site.test")
        assert names.asked["site.test"] == lookups
    resolver.close()


async def test_a_failure_is_a_value_and_kept_for_a_shorter_time() -> None:
    clock, names = FakeClock(), Names()
    resolver = Resolver(clock, lookup=names, failure_ttl=timedelta(seconds=5))
    for wait, lookups in ((0, 1), (4, 1), (2, 2)):
        clock.jump(wait)
        answer = await ask(resolver, "nobody.test")
        assert isinstance(answer, Failure)
        assert (answer.code, answer.retryable) == ("dns_error", False)
        assert "nobody.test" not in answer.message
        assert names.asked["nobody.test"] == lookups
    resolver.close()


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (socket.gaierror(socket.EAI_AGAIN, "try again"), True),
        (socket.gaierror(socket.EAI_FAIL, "broken"), True),
        (socket.gaierror(socket.EAI_NONAME, "unknown"), False),
        (UnicodeError("label too long"), False),
    ],
)
async def test_only_a_name_server_in_trouble_is_worth_another_try(error: Exception, retryable: bool) -> None:
    def lookup(_host: str) -> tuple[str, ...]:
        raise error

    resolver = Resolver(SystemClock(), lookup=lookup)
    answer = await ask(resolver, "site.test")
    assert isinstance(answer, Failure)
    assert answer.retryable is retryable
    resolver.close()


async def test_a_name_without_an_address_is_a_failure() -> None:
    resolver = Resolver(SystemClock(), lookup=lambda _host: ())
    assert isinstance(await ask(resolver, "site.test"), Failure)
    resolver.close()


async def test_a_name_server_that_does_not_answer_is_given_up() -> None:
    names = Names({"slow.test": ("192.0.2.1",)})
    names.go.clear()
    resolver = Resolver(SystemClock(), lookup=names, timeout=timedelta(milliseconds=20))
    answer = await ask(resolver, "slow.test")
    assert isinstance(answer, Failure)
    assert answer.retryable
    names.go.set()
    resolver.close()


async def test_slow_names_do_not_hold_up_others_while_a_thread_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver_module, "THREADS", 2)
    go = threading.Event()

    def lookup(host: str) -> tuple[str, ...]:
        if host == "slow.test":
            go.wait(10)
        return ("192.0.2.1",)

    resolver = Resolver(SystemClock(), lookup=lookup)
    slow = ask(resolver, "slow.test")
    for number in range(5):
        assert await ask(resolver, f"quick{number}.test") == ("192.0.2.1",)
    assert not slow.done()
    go.set()
    assert await slow == ("192.0.2.1",)
    resolver.close()


async def test_the_oldest_answers_are_evicted_for_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver_module, "MOST_KNOWN", 3)
    names = Names({f"h{number}.test": ("192.0.2.1",) for number in range(4)})
    resolver = Resolver(FakeClock(), lookup=names)
    for host in ("h0.test", "h1.test", "h2.test", "h3.test", "h3.test", "h0.test"):
        await ask(resolver, host)
    assert names.asked == {"h0.test": 2, "h1.test": 1, "h2.test": 1, "h3.test": 1}
    resolver.close()


def test_a_resolver_serves_one_loop_after_the_other() -> None:
    names = Names({"site.test": ("192.0.2.1",)})
    resolver = Resolver(SystemClock(), lookup=names, ttl=timedelta(0))

    async def once() -> Answer:
        return await ask(resolver, "site.test")

    assert [asyncio.run(once()) for _ in range(2)] == [("192.0.2.1",)] * 2
    resolver.close()


def test_an_answer_that_comes_after_its_loop_is_dropped() -> None:
    names = Names({"late.test": ("192.0.2.1",)})
    names.go.clear()
    resolver = Resolver(SystemClock(), lookup=names)
    told: list[Answer] = []
    before = set(threading.enumerate())

    async def leave() -> None:
        resolver.resolve("late.test", told.append)

    asyncio.run(leave())
    threads = set(threading.enumerate()) - before
    resolver.close()
    names.go.set()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert len(threads) == 1
    assert told == []


def test_the_system_knows_localhost() -> None:
    assert {"127.0.0.1", "::1"} & set(system_lookup("localhost"))
