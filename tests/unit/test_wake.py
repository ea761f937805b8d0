"""The parts that all drivers of the wake-up share: the rate of hints and their health."""

from shoal.base.clock import FakeClock
from shoal.base.signals import Signal, Signals
from shoal.queue.wake import BURST, BURST_PAUSE_SECONDS, HintRate, WakeDegraded, WakeHealth, WakeRestored


def test_hints_pause_only_after_a_burst_within_a_second() -> None:
    clock = FakeClock()
    rate = HintRate(clock)
    assert [rate.pause() for _ in range(BURST - 1)] == [0.0] * (BURST - 1)
    assert rate.pause() == BURST_PAUSE_SECONDS
    clock.jump(1.0)
    assert rate.pause() == 0.0


def test_only_changes_of_the_health_are_emitted() -> None:
    signals, seen = Signals(), list[Signal]()
    signals.subscribe(seen.append)
    health = WakeHealth(signals)
    assert not health.restore()
    health.degrade("closed")
    health.degrade("refused")
    assert health.problem == "refused"
    assert health.restore()
    assert health.problem is None
    assert not health.restore()
    assert seen == [WakeDegraded(why="closed"), WakeRestored()]
