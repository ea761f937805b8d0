"""The slots of runs: a machine that has no room for a child is told of, and ends no worker."""

from typing import Any, cast

from shoal.base.clock import SystemClock
from shoal.base.signals import Signal, Signals
from shoal.settings import WorkSettings
from shoal.work.child_process import ChildSpawner
from shoal.work.run_children import RunChildren
from shoal.work.storage_watch import StorageWatch
from shoal.work.worker_context import ChildGone, WorkerContext


async def test_a_first_child_that_cannot_be_started_is_told_of_at_once() -> None:
    told: list[Signal] = []
    signals = Signals()
    signals.subscribe(told.append)
    nursery = ChildSpawner(SystemClock(), signals, {}, command=["/nowhere/shoal"])
    clock = SystemClock()
    storage = StorageWatch({}, clock, signals)
    place = WorkerContext(
        "n", "n", ["shared"], ["crawl"], cast(Any, None), WorkSettings(), clock, signals, nursery, storage
    )
    await RunChildren(place, freed=lambda: None).warm_up()
    [signal] = told
    assert isinstance(signal, ChildGone)
    assert ("No such file" in signal.how, signal.had_begun) == (True, False)
