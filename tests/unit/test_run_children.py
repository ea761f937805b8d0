"""The slots of runs: a machine without resources for another child is reported, and does not end the worker."""

from typing import Any, cast

from shoal.base.clock import SystemClock
from shoal.base.settings import WorkSettings
from shoal.base.signals import Signal, Signals
from shoal.work.child_handle import ChildSpawner
from shoal.work.child_pool import RunChildren
from shoal.work.worker_context import ChildGone, StorageWatch, WorkerContext


async def test_a_first_child_that_cannot_be_started_is_reported_at_once() -> None:
    emitted: list[Signal] = []
    signals = Signals()
    signals.subscribe(emitted.append)
    spawner = ChildSpawner(SystemClock(), signals, {}, command=["/nowhere/shoal"])
    clock = SystemClock()
    storage = StorageWatch({}, clock, signals)
    context = WorkerContext(
        "n", "n", ["shared"], ["crawl"], cast(Any, None), WorkSettings(), clock, signals, spawner, storage
    )
    await RunChildren(context, on_free=lambda: None).warm_up()
    [signal] = emitted
    assert isinstance(signal, ChildGone)
    assert ("No such file" in signal.how, signal.had_begun) == (True, False)
