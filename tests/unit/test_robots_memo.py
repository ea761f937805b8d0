"""The robots.txt rules that a process remembers."""

import asyncio
from datetime import timedelta

import pytest

from shoal.base.clock import FakeClock
from shoal.base.errors import BackendUnavailable
from shoal.hosts.robots import RobotsRecord, RobotsState, Rules
from shoal.hosts.robots_cache import FRESH_SECONDS, RobotsMemo

HOST = "https://example.com"


class Source:
    """Counts the calls; each returns the state, or raises, once it may."""

    def __init__(self) -> None:
        self.calls = 0
        self.state = RobotsState.FOUND
        self.error: Exception | None = None
        self.may_answer = asyncio.Event()

    async def rules_of(self, origin: str) -> Rules:
        self.calls += 1
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return Rules(RobotsRecord(self.state, ""), "shoal", timedelta(0))


async def test_callers_at_the_same_time_share_one_call() -> None:
    source = Source()
    memo = RobotsMemo(source, FakeClock())
    first, second, third = (asyncio.create_task(memo.rules_of(HOST)) for _ in range(3))
    async with asyncio.timeout(5):
        while not source.calls:
            await asyncio.wait({first}, timeout=0)
        first.cancel()
        source.may_answer.set()
        assert await second is await third, "although one of them gave up"
    assert memo.known(HOST) is await memo.rules_of(HOST)
    assert source.calls == 1


async def test_rules_are_remembered_for_some_time() -> None:
    source, clock = Source(), FakeClock()
    source.may_answer.set()
    memo = RobotsMemo(source, clock)
    await memo.rules_of(HOST)
    clock.jump(FRESH_SECONDS + 1)
    assert memo.known(HOST) is None
    await memo.rules_of(HOST)
    assert source.calls == 2


async def test_a_failure_is_not_remembered() -> None:
    source = Source()
    source.may_answer.set()
    memo = RobotsMemo(source, FakeClock())
    source.state = RobotsState.UNREACHABLE
    assert not (await memo.rules_of(HOST)).reachable
    assert memo.known(HOST) is None
    source.error = BackendUnavailable("the store", "it is away", "wait")
    with pytest.raises(BackendUnavailable):
        await memo.rules_of(HOST)
    source.state, source.error = RobotsState.FOUND, None
    assert (await memo.rules_of(HOST)).reachable
