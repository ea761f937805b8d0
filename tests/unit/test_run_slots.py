"""The slots of runs: a machine that has no room for a child is told of, and ends no worker."""

from typing import Any, cast

from shoal.base.clock import SystemClock
from shoal.base.signals import Signal, Signals
from shoal.settings import WorkSettings
from shoal.work.nursery import Nursery
from shoal.work.runs import RunSlots
from shoal.work.storage import StorageWatch
from shoal.work.workplace import ChildGone, Workplace


async def test_a_first_child_that_cannot_be_started_is_told_of_at_once() -> None:
    told: list[Signal] = []
    signals = Signals()
    signals.subscribe(told.append)
    nursery = Nursery(SystemClock(), signals, {}, command=["/nowhere/shoal"])
    clock = SystemClock()
    storage = StorageWatch({}, clock, signals)
    place = Workplace(
        "n", "n", ["shared"], ["crawl"], cast(Any, None), WorkSettings(), clock, signals, nursery, storage
    )
    await RunSlots(place, freed=lambda: None).warm_up()
    [signal] = told
    assert isinstance(signal, ChildGone)
    assert ("No such file" in signal.how, signal.had_begun) == (True, False)
