"""The event loop of a controller: no request at its limits keeps the others waiting. The limit is 50 ms of CPU in one
callback, and five times as much here, because the tests run on any machine."""

import asyncio
import threading

import jinja2
import orjson
import pytest

from shoal.base.signals import Signal
from shoal.plan.scheduler import JobsScheduled
from shoal.serve.console.shell import Shell
from tests.support.controller import served_controller
from tests.support.requests_at_limits import LINES, URLS, measured_requests

LIMIT_SECONDS = 5 * 0.05


def test_no_request_at_its_limits_stops_the_event_loop(store_url: str) -> None:
    # The callbacks of uvloop, on which the other tests run, cannot be timed.
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        measured = runner.run(asyncio.wait_for(measured_requests(store_url, nodes=50), 120))
    slow = [
        f"{one.request}: {one.seconds:.3f} s in {one.callback}"
        for one in measured.requests
        if one.seconds > LIMIT_SECONDS
    ]
    assert not slow, "\n".join(slow)
    assert measured.forgotten() == []


async def test_templates_are_compiled_outside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[int] = []
    compile_one = jinja2.Environment._compile

    def compile_noted(environment: jinja2.Environment, source: str, filename: str) -> object:
        compiled.append(threading.get_ident())
        return compile_one(environment, source, filename)

    monkeypatch.setattr(jinja2.Environment, "_compile", compile_noted)
    shell = Shell(["settings"])
    await shell.compile_templates()
    assert len(compiled) > 50
    assert threading.get_ident() not in compiled


async def test_many_due_policies_are_planned_in_parts(postgres_url: str) -> None:
    """SQLite plans in a thread of its own; on PostgreSQL the event loop does it."""
    rows = b"\n".join(orjson.dumps({"url": url, "frequency": "1h"}) for url in URLS[:600])
    planned, all_planned = list[int](), asyncio.Event()

    def note(signal: Signal) -> None:
        if isinstance(signal, JobsScheduled):
            planned.append(signal.made)
            if sum(planned) == 600:
                all_planned.set()

    async with served_controller(postgres_url) as shop:
        shop.app.signals.subscribe(note)
        answer = await shop.ask("/api/v1/policies/import", method="POST", body=rows, headers=LINES)
        assert answer.status == 200, answer.body
        await asyncio.wait_for(all_planned.wait(), 30)
    assert max(planned) <= 300
