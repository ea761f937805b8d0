"""Workers inside a controller and on their own: health checks, metrics, and a child that cannot start."""

import asyncio
import errno
import json
from collections.abc import Callable
from http.client import HTTPConnection
from io import StringIO
from pathlib import Path
from typing import Any, cast

import pytest

from shoal.access.token import TokenRequest, local_caller
from shoal.app import App, opened
from shoal.base.clock import SystemClock
from shoal.base.errors import BackendUnavailable, NotAllowed, StorageFull
from shoal.base.ids import JobId
from shoal.base.parsing import Address
from shoal.base.settings import LogSettings, QueueSettings
from shoal.base.settings_loader import load
from shoal.base.signals import Signal, Signals
from shoal.crawl.lifecycle.transitions import CrawlMoved
from shoal.crawl.states import CrawlState
from shoal.observe.logs import Logs
from shoal.observe.metrics import Metrics
from shoal.pages.page import PagesSettled
from shoal.process import child
from shoal.process.http import probed
from shoal.process.runners import storage_of
from shoal.queue.job import Fence, Lease
from shoal.queue.moves import JobMoved
from shoal.queue.queue import Queue
from shoal.queue.states import GrantEnd, JobState
from shoal.web.renderer import LocalBrowsers
from shoal.work import child_loop
from shoal.work.child_handle import ChildSpawner
from shoal.work.child_loop import Child, RunningJob, RunsRole
from shoal.work.ipc import (
    Browsers,
    BrowsersRestarted,
    Done,
    Full,
    Report,
    RestartBrowsers,
    Status,
    encode,
    orders,
)
from shoal.work.worker import Worker, WorkerFailed, WorkerStarted
from shoal.work.worker_context import StorageFilled, StorageFreed, WorkerContext
from tests.support.controller import served_controller
from tests.support.servers import free_port

PATIENCE = 10.0


class Stumbling(Queue):
    """A queue that raises an unexpected error the first time."""

    stumbled = False

    async def lease(self, *args: Any, **more: Any) -> list[Lease]:
        if not self.stumbled:
            self.stumbled = True
            raise RuntimeError("boom")
        return await super().lease(*args, **more)


async def test_a_worker_that_fails_is_told_of_at_once_and_followed_by_another(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.process.controller.FIRST_PAUSE_SECONDS", 0.01)
    told: list[Signal] = []
    replaced = asyncio.Event()

    def record(signal: Signal) -> None:
        told.append(signal)
        if [type(one) for one in told].count(WorkerStarted) == 2:
            replaced.set()

    def team(app: App) -> list[Worker]:
        app.signals.subscribe(record)
        queue = Stumbling(app.database, app.queue.enqueuer, app.settings.queue)
        spawner = ChildSpawner(app.clock, app.signals, {}, command=["/nowhere/shoal"])
        context = WorkerContext(
            node_id="n",
            holder="n/1",
            lanes=["shared"],
            kinds=["crawl"],
            queue=queue,
            settings=app.settings.work,
            clock=app.clock,
            signals=app.signals,
            spawner=spawner,
            storage=storage_of(app),
        )
        return [Worker(context, app.wake)]

    async with served_controller(sqlite_url, team=team) as shop:
        await asyncio.wait_for(replaced.wait(), PATIENCE)
        [failed] = [signal for signal in told if isinstance(signal, WorkerFailed)]
        assert (failed.node_id, failed.error) == ("n", "RuntimeError('boom')")
        assert failed.where.startswith("test_workers.py:")
        assert (await shop.ask("/healthz")).status == 200


async def asked(address: str, path: str, token: str = "") -> tuple[int, str]:
    def ask() -> tuple[int, str]:
        connection = HTTPConnection(address.removeprefix("http://"), timeout=PATIENCE)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    return await asyncio.to_thread(ask)


async def test_a_worker_with_a_listen_address_serves_health_and_metrics(sqlite_url: str) -> None:
    metrics, signals = Metrics(), Signals()
    signals.subscribe(metrics.listen)
    settings = load({"DATABASE_URL": sqlite_url}, env={}).settings
    async with opened(settings, signals) as app, probed(app, metrics, Address("127.0.0.1", 0)) as address:
        signals.emit(PagesSettled(pages={"2xx": 3}, bytes={"2xx": 30}))
        assert 'shoal_pages_total{status_class="2xx"} 3.0' in (await asked(address, "/metrics"))[1]
        assert json.loads((await asked(address, "/readyz"))[1]) == {"status": "ok", "store": "ok"}
        assert [(await asked(address, path))[0] for path in ("/healthz", "/api/v1/crawls", "/")] == [200, 404, 404]
        made = await app.access.tokens.create(TokenRequest.read({"name": "ci", "role": "admin"}), local_caller())
    async with opened(settings, signals) as app, probed(app, metrics, Address("127.0.0.1", 0)) as address:
        assert (await asked(address, "/metrics"))[0] == 401
        assert (await asked(address, "/metrics", made.text))[0] == 200


async def test_a_worker_without_space_for_bodies_is_not_ready_and_says_why(sqlite_url: str) -> None:
    signals, full = Signals(), {"bodies": "the disk has no space left; free some space."}
    metrics = Metrics()
    signals.subscribe(metrics.listen)
    settings = load({"DATABASE_URL": sqlite_url}, env={}).settings
    at = Address("127.0.0.1", 0)
    async with opened(settings, signals) as app, probed(app, metrics, at, lambda: full) as address:
        status, text = await asked(address, "/readyz")
        assert (status, json.loads(text)) == (
            503,
            {"status": "unavailable", "store": "ok", "bodies": "storage_full", "detail": full["bodies"]},
        )
        assert 'shoal_storage_full{storage="bodies"} 0.0' in (await asked(address, "/metrics"))[1]
        signals.emit(StorageFilled(storage="bodies", error=full.pop("bodies")))
        assert 'shoal_storage_full{storage="bodies"} 1.0' in (await asked(address, "/metrics"))[1]
        assert (await asked(address, "/readyz"))[0] == 200
        signals.emit(StorageFreed(storage="bodies", full_seconds=3.0))
        assert 'shoal_storage_full{storage="bodies"} 0.0' in (await asked(address, "/metrics"))[1]


@pytest.mark.parametrize(
    ("error", "storage"),
    [
        (StorageFull("the store"), "store"),
        (StorageFull("the folder", "bodies"), "bodies"),
        (OSError(errno.ENOSPC, "No space left on device"), "store"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "store"),
    ],
)
async def test_a_child_that_finds_no_space_says_so_and_does_not_fail_its_job(
    error: Exception, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Report] = []
    monkeypatch.setattr(child_loop, "_send", said.append)

    async def runner(lease: Lease, alive: Callable[[], bool]) -> RunningJob:
        raise error

    lease = Lease(Fence(JobId("job_1"), 1), "crawl", "crl_1", "{}", 0, 2, 0, 0.0)
    await RunsRole(runner, QueueSettings(), SystemClock()).work(lease)
    [full, status, done] = said
    assert isinstance(full, Full)
    assert isinstance(status, Status)
    assert (full.storage, full.error != "", status.memory > 0) == (storage, True, True)
    assert done == Done("storage_full")


async def test_a_worker_listens_only_where_a_controller_would(sqlite_url: str) -> None:
    port = free_port()
    async with opened(load({"DATABASE_URL": sqlite_url}, env={}).settings) as app:
        with pytest.raises(NotAllowed, match="without a token"):
            async with probed(app, Metrics(), Address("0.0.0.0", 0)):
                pass
        async with probed(app, Metrics(), Address("127.0.0.1", port)):
            with pytest.raises(BackendUnavailable, match="or choose a different port with SHOAL_WORKER_LISTEN"):
                async with probed(app, Metrics(), Address("127.0.0.1", port)):
                    pass


@pytest.mark.parametrize("role", ["runs", "pages"])
def test_a_child_whose_store_is_away_says_so_in_one_line(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    signals, log = Signals(), StringIO()
    signals.subscribe(Logs(LogSettings(format="json"), SystemClock(), log).listen)
    monkeypatch.setenv("DATABASE_URL", f"postgresql://nobody@127.0.0.1:{free_port()}/none")
    monkeypatch.setattr("sys.argv", ["child", "1", role, *(["w1", "shared"] if role == "pages" else [])])
    monkeypatch.setattr(child, "logged", lambda settings: signals)
    for what_changes_this_process in ("die_with_parent", "reduce_collections"):
        monkeypatch.setattr(child, what_changes_this_process, lambda *args: None)
    with pytest.raises(SystemExit) as leaving:
        child.main()
    assert leaving.value.code == 8
    [line] = map(json.loads, log.getvalue().splitlines())
    assert (line["level"], line["event"]) == ("warning", "child_refused")
    assert "cannot start: PostgreSQL" in line["msg"]


async def test_signals_of_a_child_are_counted_by_its_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[bytes] = []
    monkeypatch.setattr(child_loop, "_send", lambda message: said.append(encode(message)))
    relay = Signals()
    Child(cast(Any, None), QueueSettings(), SystemClock(), relay, LocalBrowsers())
    job = {"job_id": "job_1", "run_id": "crl_1", "to": JobState.DONE, "reason": None, "error": None}
    relay.emit(JobMoved(kind="crawl", how=GrantEnd.DONE, **job))
    relay.emit(CrawlMoved(crawl_id="crl_1", state=CrawlState.RUNNING, reason=None))
    relay.emit(CrawlMoved(crawl_id="crl_1", state=CrawlState.COMPLETED, reason="drained", seconds=42.0))
    (tmp_path / "said").write_bytes(b"".join(said))

    metrics, signals = Metrics(), Signals()
    signals.subscribe(metrics.listen)
    spawner = ChildSpawner(SystemClock(), signals, {}, command=["/bin/sh", "-c", f"cat {tmp_path}/said"])
    process = await spawner.spawn()
    await process.result()
    await process.wait()
    shown = metrics.render().decode()
    assert 'shoal_jobs_done_total{kind="crawl"} 1.0' in shown
    assert 'shoal_crawls_total{state="completed"} 1.0' in shown
    assert 'shoal_crawl_seconds_sum{state="completed"} 42.0' in shown


async def test_a_worker_knows_the_browsers_of_a_child_and_why_they_could_not_be_restarted(tmp_path: Path) -> None:
    said = encode(Browsers(1, 3)) + encode(Status())
    (tmp_path / "said").write_bytes(said)
    (tmp_path / "answer").write_bytes(encode(BrowsersRestarted("no memory")))
    answers = f"cat {tmp_path}/said; read request; echo $request > {tmp_path}/asked; cat {tmp_path}/answer; read more"
    spawner = ChildSpawner(SystemClock(), Signals(), {}, command=["/bin/sh", "-c", answers])
    process = await spawner.spawn()
    assert await process.restart_browsers() == "no memory"
    assert orders.decode((tmp_path / "asked").read_bytes()) == RestartBrowsers()
    assert process.browsers == Browsers(1, 3)
    restarting = asyncio.create_task(process.restart_browsers())
    process.kill()
    assert await restarting == ""  # they ended with the child
    await process.wait()
    assert process.browsers == Browsers(0, 0)
    assert await process.restart_browsers() == ""
