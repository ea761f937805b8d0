"""The event loop of a controller: no request at its limits keeps the others waiting. The limit is 50 ms of CPU in one
callback, and five times as much here, because the tests run on any machine."""

import asyncio
import socket
import threading

import jinja2
import orjson
import pytest

from shoal.app.render import service_pool
from shoal.base.clock import SystemClock
from shoal.base.settings_loader import load
from shoal.base.signals import Signal, Signals
from shoal.plan.scheduler import JobsScheduled
from shoal.serve.application import application
from shoal.serve.console.shell import Shell
from shoal.serve.endpoint import routes_of
from shoal.serve.renderer import RendererApi
from tests.support.api import answering
from tests.support.controller import served_controller
from tests.support.http_client import request
from tests.support.patience import with_load
from tests.support.requests_at_limits import LINES, URLS, measured_requests

LIMIT_SECONDS = 5 * 0.05


@pytest.mark.exhaustive
def test_no_request_at_its_limits_stops_the_event_loop(store_url: str) -> None:
    # The callbacks of uvloop, on which the other tests run, cannot be timed.
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        measured = runner.run(asyncio.wait_for(measured_requests(store_url, nodes=50), with_load(120)))
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


async def test_a_renderer_writes_its_metrics_outside_the_event_loop() -> None:
    written: list[int] = []

    def metrics() -> tuple[bytes, str]:
        written.append(threading.get_ident())
        return b"shoal_pages 1\n", "text/plain"

    clock, signals = SystemClock(), Signals()
    api = RendererApi(service_pool(load({}, env={}).settings, clock, signals), 1, metrics)
    listener = socket.create_server(("127.0.0.1", 0))
    async with answering(application(routes_of([api], 1_000), clock, signals), listener):
        answer = await asyncio.to_thread(request, listener.getsockname()[1], "GET", "/metrics", None, {})
    assert (answer.status, answer.text) == (200, "shoal_pages 1\n")
    assert written
    assert threading.get_ident() not in written


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
