"""Clock, ids, errors, and the loop that runs chores."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from shoal.base import errors
from shoal.base.clock import FakeClock, SystemClock, from_micros, moment, span, to_micros
from shoal.base.errors import RESPONSES, ShoalError
from shoal.base.ids import PREFIXES, new_id
from shoal.base.service import PassResult, Service
from shoal.base.signals import ChoreDone, ChoreFailed, Signal, Signals
from tests.support.patience import PATIENCE_SECONDS, in_time


def test_a_moment_survives_the_way_through_the_store() -> None:
    when = datetime(2026, 11, 15, 12, 30, 1, 234567, tzinfo=UTC)
    assert from_micros(to_micros(when)) == when
    assert moment(None) is None
    assert span(timedelta(seconds=1.5)) == 1_500_000


def test_the_system_clock_speaks_utc() -> None:
    clock = SystemClock()
    assert clock.now().tzinfo is UTC
    assert abs(clock.micros() - to_micros(clock.now())) < 1_000_000


async def test_the_fake_clock_wakes_sleepers_in_the_order_of_their_deadlines() -> None:
    clock, woken = FakeClock(), []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((seconds, clock.monotonic()))

    async with asyncio.TaskGroup() as group:
        for seconds in (3, 1, 2):
            group.create_task(sleeper(seconds))
        await settle()
        await clock.advance(2.5)
        assert woken == [(1, 1.0), (2, 2.0)]
        await clock.advance(1)
    assert woken[-1] == (3, 3.0)


async def test_a_jump_moves_the_time_and_wakes_nobody() -> None:
    clock = FakeClock()
    sleeping = asyncio.ensure_future(clock.sleep(1))
    await settle()
    clock.jump(10)
    await settle()
    assert clock.monotonic() == 10
    assert not sleeping.done()
    sleeping.cancel()


def test_ids_say_what_they_name_and_sort_by_time() -> None:
    first, second = new_id("crl"), new_id("job")
    assert first.startswith("crl_")
    assert second.startswith("job_")
    assert len(first) == 4 + 26
    assert len({new_id("evt") for _ in range(1000)}) == 1000
    assert [prefix for prefix in PREFIXES if len(prefix) != 3] == []


def test_ids_of_one_process_sort_in_the_order_in_which_they_were_made() -> None:
    made = [new_id("evt") for _ in range(1000)]
    assert made == sorted(made)


def test_an_id_without_a_known_prefix_is_not_made() -> None:
    with pytest.raises(KeyError):
        new_id("foo")


def leaves(kind: type[ShoalError]) -> set[type[ShoalError]]:
    below = [one for one in kind.__subclasses__() if one.__module__ == errors.__name__]
    return {kind} if not below else set().union(*map(leaves, below))


def test_every_error_class_has_its_responses_and_a_code_of_its_own() -> None:
    classes = leaves(ShoalError)
    assert classes == set(RESPONSES)
    assert len({kind.code for kind in classes}) == len(classes)


def test_the_tree_at_the_top_of_the_module_names_every_class() -> None:
    assert errors.__doc__ is not None
    for kind in leaves(ShoalError):
        assert kind.__name__ in errors.__doc__


def test_a_problem_document_carries_status_code_and_facts() -> None:
    error = errors.NotFound("crawl", "crl_x", "list them with `shoal crawls ls`")
    assert str(error) == 'crawl "crl_x" does not exist; list them with `shoal crawls ls`.'
    problem = error.problem()
    assert (problem["status"], problem["code"], problem["id"]) == (404, "not_found", "crl_x")


class Counting:
    name = "counting"

    def __init__(self, *outcomes: PassResult | Exception) -> None:
        self.outcomes = list(outcomes)
        self.passes = 0
        self.ran = asyncio.Event()

    async def run_once(self) -> PassResult:
        self.passes += 1
        self.ran.set()
        outcome = self.outcomes.pop(0) if self.outcomes else PassResult()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def service_of(chore: Counting, clock: FakeClock) -> tuple[Service, list[Signal]]:
    signals, heard = Signals(), list[Signal]()
    signals.subscribe(heard.append)
    return Service(chore, timedelta(seconds=10), clock, signals), heard


async def settle() -> None:
    """Let every task run as far as it can without time passing."""
    for _ in range(20):
        await SystemClock().sleep(0)


async def test_a_chore_runs_within_its_first_interval_and_then_every_interval() -> None:
    clock, chore = FakeClock(), Counting()
    service, _ = service_of(chore, clock)
    service.start()
    await settle()
    assert chore.passes == 0
    await clock.advance(10)
    assert chore.passes >= 1
    await clock.advance(30)
    assert chore.passes in (3, 4)
    await service.stop()


async def test_a_chore_that_fails_is_tried_again_after_a_growing_pause_and_reported() -> None:
    clock, chore = FakeClock(), Counting(OSError("away"), ValueError("odd"), PassResult(did="something"))
    service, heard = service_of(chore, clock)
    service.start()
    await settle()
    await clock.advance(10)
    await clock.advance(3)
    failures = [signal for signal in heard if isinstance(signal, ChoreFailed)]
    assert [failure.retry_in_seconds for failure in failures] == [0.5, 1.0]
    assert any(isinstance(signal, ChoreDone) and signal.did == "something" for signal in heard)
    await service.stop()


async def test_a_nudged_chore_runs_before_its_interval() -> None:
    clock, chore = FakeClock(), Counting()
    service, _ = service_of(chore, clock)
    service.start()
    await settle()
    service.nudge()
    await settle()
    assert chore.passes == 1
    await service.stop()


async def test_stop_may_be_called_twice_and_before_start() -> None:
    clock, chore = FakeClock(), Counting()
    service, _ = service_of(chore, clock)
    await service.stop()
    await service.stop()
    service.start()
    await clock.advance(60)
    assert chore.passes == 0


async def test_stop_lets_the_pass_under_way_finish() -> None:
    clock, finished = FakeClock(), []

    class Slow(Counting):
        async def run_once(self) -> PassResult:
            self.ran.set()
            await clock.sleep(5)
            finished.append(True)
            return PassResult()

    chore = Slow()
    service, _ = service_of(chore, clock)
    service.start()
    service.nudge()
    await asyncio.wait_for(chore.ran.wait(), PATIENCE_SECONDS)
    stopping = asyncio.ensure_future(service.stop())
    await settle()
    assert not stopping.done()
    await clock.advance(5)
    await in_time(stopping)
    assert finished == [True]


async def test_stop_does_not_wait_for_ever_for_a_pass_that_hangs() -> None:
    class Hanging(Counting):
        async def run_once(self) -> PassResult:
            self.ran.set()
            return await asyncio.get_running_loop().create_future()

    chore = Hanging()
    service, _ = service_of(chore, FakeClock())
    service.start()
    service.nudge()
    await asyncio.wait_for(chore.ran.wait(), 10)
    await asyncio.wait_for(service.stop(grace_seconds=0.05), 10)


async def test_a_chore_that_cannot_write_its_rest_does_not_fail_the_stop() -> None:
    class Closing(Counting):
        async def close(self) -> None:
            await self.run_once()

    chore = Closing(OSError("away"))
    service, heard = service_of(chore, FakeClock())
    await asyncio.wait_for(service.stop(grace_seconds=0.2), 10)
    assert [failure.error for failure in heard if isinstance(failure, ChoreFailed)] == ["away"]
