"""The measurements of a worker about itself, and the rate limit of its fetches."""

import sys
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from shoal.base.clock import FakeClock
from shoal.base.machine import usage
from shoal.hosts.rate import FetchRate
from shoal.work.worker_context import RECENT_SECONDS, RecentTasks


def test_a_worker_without_tasks_counts_as_successful() -> None:
    assert RecentTasks(FakeClock()).recent() == (0, 1.0, 0.0)


def test_success_and_latency_are_those_of_recent_tasks() -> None:
    clock = FakeClock()
    tasks = RecentTasks(clock)
    tasks.record(failed=3)
    clock.jump(RECENT_SECONDS - 10)
    tasks.record(done=3, timed=2, seconds=8.0)
    tasks.record(failed=1)
    assert tasks.recent() == (7, 3 / 7, 4.0)
    clock.jump(11)
    assert tasks.recent() == (4, 0.75, 4.0)
    clock.jump(RECENT_SECONDS)
    assert tasks.recent() == (0, 1.0, 0.0)
    assert tasks.total == 7


def test_a_busy_hour_takes_no_more_memory_than_five_minutes() -> None:
    clock = FakeClock()
    tasks = RecentTasks(clock)
    for _ in range(36_000):
        tasks.record(done=10, timed=10, seconds=1.0)
        clock.jump(0.1)
    assert len(tasks._entries) <= RECENT_SECONDS + 1
    assert tasks.total == 360_000


def test_fetches_start_at_the_rate_and_not_in_bursts_after_a_pause() -> None:
    clock = FakeClock()
    rate = FetchRate(10, clock)
    starts = []
    for _ in range(1000):
        while rate.seconds_left() <= 0:
            rate.spend()
            starts.append(clock.monotonic())
        clock.jump(0.01)
    assert abs(len(starts) - 100) <= 2  # ten seconds at ten per second
    clock.jump(60)
    started = 0
    while rate.seconds_left() <= 0:
        rate.spend()
        started += 1
    assert started <= 2


def test_a_very_low_rate_allows_the_first_fetch_at_once() -> None:
    clock = FakeClock()
    rate = FetchRate(0.001, clock)
    assert rate.seconds_left() == 0
    rate.spend()
    clock.jump(999)
    assert rate.seconds_left() > 0
    clock.jump(1.1)
    assert rate.seconds_left() == 0


def test_a_rate_that_is_changed_again_and_again_gives_no_start_away() -> None:
    clock = FakeClock()
    rate = FetchRate(1, clock)
    starts = 0
    for step in range(1000):  # ten seconds, at one or half a fetch per second
        while rate.seconds_left() <= 0:
            rate.spend()
            starts += 1
        clock.jump(0.01)
        rate.change(0.5 if step % 2 else 1)
    assert 7 <= starts <= 9
    rate.change(1000)
    assert rate.seconds_left() <= 0.001


def test_usage_counts_this_process() -> None:
    before = usage()
    assert before.memory_bytes > 10_000_000
    assert sum(range(2_000_000)) > 0
    assert usage().cpu_seconds >= before.cpu_seconds


GRANDCHILD = """
import sys
filled = b"x" * 60_000_000
sum(range(5_000_000))
print("ready", flush=True)
sys.stdin.read()
"""
CHILD = f"""
import subprocess, sys, threading
def run():
    with subprocess.Popen([sys.executable, "-c", {GRANDCHILD!r}], stdin=subprocess.PIPE) as grandchild:
        sys.stdin.readline()
        grandchild.stdin.close()
thread = threading.Thread(target=run)  # as in Chromium, which starts its processes in a thread
thread.start()
thread.join()
print("ended", flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="there is no /proc")
def test_usage_counts_processes_that_a_child_has_started() -> None:
    before = usage()
    with Popen([sys.executable, "-c", CHILD], stdin=PIPE, stdout=PIPE, text=True) as child:
        assert child.stdin
        assert child.stdout
        assert child.stdout.readline() == "ready\n"
        running = usage()
        child.stdin.write("end\n")
        child.stdin.flush()
        assert child.stdout.readline() == "ended\n"
        ended = usage()
        child.stdin.write("end\n")
    assert running.memory_bytes - before.memory_bytes > 60_000_000
    assert running.cpu_seconds - before.cpu_seconds > 0.05
    assert ended.memory_bytes < running.memory_bytes - 50_000_000
    assert ended.cpu_seconds > running.cpu_seconds - 0.001, "the CPU time of a process that has ended is kept"
