"""`shoal demo`: the whole platform on a temporary store. It crawls, audits and recrawls a made-up site."""

import asyncio
import hmac
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import click
import orjson
import uvloop

from shoal.app import App, opened
from shoal.audit.gate import read_gate
from shoal.audit.verdict import VERDICTS
from shoal.base.clock import SystemClock
from shoal.base.errors import BackendUnavailable, NothingCrawled
from shoal.base.machine import on_stop
from shoal.base.parsing import Address, is_loopback
from shoal.base.settings_loader import load
from shoal.base.temporary_folder import TemporaryFolder
from shoal.base.text import plural
from shoal.cli.demo_server import DemoRequest, DemoResponse, DemoServer
from shoal.cli.demo_site import NAME, TANK_LIST, TANKS, DemoSite
from shoal.cli.output import in_bytes, in_time, print_answer, print_json, summary
from shoal.cli.root import Command
from shoal.crawl import journal_messages as messages
from shoal.crawl.crawl import CrawlConfig
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.states import TERMINAL, CrawlState
from shoal.events.webhook import NewWebhook, new_secret, sign
from shoal.observe.logs import note
from shoal.plan.policy import PolicyForm
from shoal.process.controller import Controller
from shoal.process.http import address_of, open_socket
from shoal.process.lifetime import watched
from shoal.process.worker import workers_of
from shoal.web.browser import has_browser

SECONDS_PER_PAGE: Final = 0.6  # average time per page, so that the crawl takes about a minute
AT_ONCE: Final = 4  # maximum number of concurrent requests of a crawl
LOOK_SECONDS, LINE_SECONDS = 0.5, 5.0
RECRAWL_EVERY: Final = "3m"
END_SECONDS: Final = 5.0  # how long a worker has to end after each SIGTERM; after the second one, it is killed
SETTINGS: Final = {
    "SHOAL_LOG_LEVEL": "error",
    "SHOAL_TLS_CERT": "",
    "SHOAL_TLS_KEY": "",
    "SHOAL_PUBLIC_URL": "",
    "SHOAL_ALLOW_NETWORKS": "127.0.0.1/32",  # the site, and the receiver of the webhook
    "SHOAL_EVENTS_EVERY": "200ms",
    "SHOAL_SHUTDOWN_GRACE": "2s",  # short, because unfinished work is removed anyway
    # Settings that the user's shell may contain. They would connect the demo to other services.
    "REDIS_URL": "",
    "RENDERER_URL": "",
    "SHOAL_FRONTIER": "sql",
    "SHOAL_LANES": "sql",
    "GRPC_ENABLED": "false",
    "GRPC_ANALYZER_ADDR": "",
    "GRPC_HEARTBEAT_INTERVAL": "2s",
}
WORKER: Final = """\
import sys
from shoal.base.machine import die_with_parent
die_with_parent(int(sys.argv[1]))
from shoal.cli.main import main
sys.exit(main(["worker"]))
"""
"""The program of a worker of the fleet. The worker ends with the demo, even if the demo is killed."""
GATE: Final = {
    "rules": [
        {"metric": "broken_links", "op": "<=", "threshold": 0},
        {"metric": "server_errors", "op": "<=", "threshold": 0},
        {"metric": "title_missing", "op": "<=", "threshold": 0},
        {"metric": "duplicate_titles", "op": "<=", "threshold": 10},
    ]
}


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Options of the demo. `nodes`: number of worker processes; if 0, one worker runs in the process of the demo."""

    nodes: int
    opens: bool
    is_fast: bool
    leaves: bool
    as_json: bool


@click.command(cls=Command)
@click.option("--open", "opens", is_flag=True, help="Open the console in a browser.")
@click.option(
    "--fleet",
    "nodes",
    type=click.IntRange(0, 16),
    default=0,
    metavar="N",
    help="Run N worker processes that report to the control plane, instead of one worker inside the demo.",
)
@click.option("--fast", "is_fast", is_flag=True, help="Crawl as fast as possible instead of slowly enough to watch.")
@click.option(
    "--exit", "leaves", is_flag=True, help="Exit after the first crawl and its audit; do not wait for Ctrl-C."
)
@click.option("--json", "as_json", is_flag=True, help="Print the address and the summary as JSON, one object per line.")
def demo(nodes: int, opens: bool, is_fast: bool, leaves: bool, as_json: bool) -> None:
    """Crawl, audit and recrawl a built-in demo site, and show it in the console. Its data is removed at the end."""
    with suppress(asyncio.CancelledError):  # the demo was stopped before it had started
        uvloop.run(_demo(DemoOptions(nodes, opens, is_fast, leaves, as_json)))
    note("The demo has ended, and its data is removed.")


async def _demo(options: DemoOptions) -> None:
    _stop_cleanly()
    site, receiver = DemoSite(SystemClock(), 0.0 if options.is_fast else SECONDS_PER_PAGE), EventReceiver()
    async with AsyncExitStack() as stack:
        folder = str(stack.enter_context(TemporaryFolder("demo-")))
        flags = SETTINGS | {"SHOAL_DATA_DIR": folder, "DATABASE_URL": f"sqlite:///{folder}/shoal.db"}
        if options.nodes:
            flags |= {"GRPC_ENABLED": "true", "GRPC_LISTEN_ADDR": "127.0.0.1:0"}
        listen = load(flags).settings.serve.listen
        listener = _open_listener(listen if is_loopback(listen.host) else Address("127.0.0.1", listen.port))
        stack.callback(listener.close)
        flags["SHOAL_LISTEN"] = address_of(listener)
        _say_address(listener, options)
        loaded = load(flags)
        signals, metrics = watched(loaded.settings)
        site_server = await stack.enter_async_context(DemoServer(site.answer))
        hook_server = await stack.enter_async_context(DemoServer(receiver.answer))
        app = await stack.enter_async_context(opened(loaded.settings, signals, controls=options.nodes > 0))
        app.console.sources = loaded.sources
        if options.nodes:
            from shoal.process.control_plane import listening_for_nodes

            address = await stack.enter_async_context(listening_for_nodes(app))
            await stack.enter_async_context(_fleet(options.nodes, flags | {"GRPC_ANALYZER_ADDR": str(address)}))
        team = await stack.enter_async_context(workers_of(app, loaded, flags, 0 if options.nodes else 1))
        controller = Controller(app, metrics, listener, team)
        story = Story(app, site, receiver, options, (controller.address, site_server.address, hook_server.address))
        await _run(controller, story)


def _stop_cleanly() -> None:
    """Cancel this task on the first Ctrl-C or SIGTERM, until the controller handles signals. If the terminal is closed,
    that counts as SIGTERM."""
    task = asyncio.current_task()
    assert task is not None

    def stop() -> None:
        if not task.cancelling():
            task.cancel()

    on_stop(stop)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, os.kill, os.getpid(), signal.SIGTERM)


def _open_listener(listen: Address) -> socket.socket:
    """Return a socket on the usual port, or on any free port if the usual one is taken. The socket listens immediately,
    so that no other process can take the port."""
    try:
        listener = open_socket(listen)
        listener.listen()
    except (BackendUnavailable, OSError):
        listener = open_socket(Address("127.0.0.1", 0))
        listener.listen()
    return listener


def _say_address(listener: socket.socket, options: DemoOptions) -> None:
    host, port = listener.getsockname()[:2]
    address = f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
    print_answer({"console": address}, f"Console: {address}", as_json=options.as_json)
    if options.opens:
        click.launch(address)


@asynccontextmanager
async def _fleet(count: int, flags: Mapping[str, str]) -> AsyncIterator[None]:
    """Run workers as processes while the block runs. Each has a separate session, so that Ctrl-C reaches only the
    demo."""
    workers = []
    try:
        for number in range(1, count + 1):
            environment = {**os.environ, **flags, "GRPC_NODE_ID": f"demo-{number}"}
            words = (sys.executable, "-P", "-c", WORKER, str(os.getpid()))
            workers.append(await asyncio.create_subprocess_exec(*words, env=environment, start_new_session=True))
        yield
    finally:
        await asyncio.gather(*map(_end, workers))


async def _end(worker: asyncio.subprocess.Process) -> None:
    """End a worker and its children. The second SIGTERM tells the worker not to wait for its work."""
    for end in (worker.terminate, worker.terminate, worker.kill):
        with suppress(ProcessLookupError):
            end()
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await worker.wait()
                return


async def _run(controller: Controller, story: "Story") -> None:
    serving = asyncio.create_task(controller.run())
    telling = asyncio.create_task(story.tell())
    try:
        await asyncio.wait({serving, telling}, return_when=asyncio.FIRST_COMPLETED)
        if telling.done():
            telling.result()
            controller.stop()
        await serving
    finally:
        telling.cancel()
        controller.stop()
        await asyncio.gather(serving, telling, return_exceptions=True)


class EventReceiver:
    """The receiver of the demo's webhook. It checks the signature of each event, prints the event and keeps it for
    `Story`."""

    def __init__(self) -> None:
        self.secret = new_secret()
        self._events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def answer(self, request: DemoRequest) -> DemoResponse:
        event_id, seconds = request.headers.get("webhook-id", ""), request.headers.get("webhook-timestamp", "")
        given = request.headers.get("webhook-signature", "")
        if not seconds.isdecimal() or not hmac.compare_digest(
            sign([self.secret], event_id, int(seconds), request.body), given
        ):
            return DemoResponse(HTTPStatus.UNAUTHORIZED)
        event = orjson.loads(request.body)
        note(f"  webhook: {event['type']} {event['subject']}")
        self._events.put_nowait(event)
        return DemoResponse(HTTPStatus.NO_CONTENT)

    async def next(self, kind: str, crawl: str) -> dict[str, Any]:
        """Wait for the next event of this type about a crawl whose id begins with the prefix. Return the event data."""
        while True:
            event = await self._events.get()
            data: dict[str, Any] = event["data"]
            if event["type"] == kind and data["crawl_id"].startswith(crawl):
                return data


class Story:
    """The steps of the demo, which run while the controller serves the console."""

    def __init__(
        self, app: App, site: DemoSite, receiver: EventReceiver, options: DemoOptions, addresses: tuple[str, str, str]
    ) -> None:
        self._app = app
        self._site = site
        self._receiver = receiver
        self._options = options
        self._console, self._home, self._hook = addresses

    async def tell(self) -> None:
        """Crawl and audit the site; then let a policy crawl each new edition of the site."""
        await self._app.audit.gates.create("release", read_gate(GATE))
        await self._app.events.webhooks.make(NewWebhook(url=f"{self._hook}/", secret=self._receiver.secret))
        note(f"{NAME}, a made-up site of {len(self._site.pages)} pages with planted defects: {self._home}/")
        config = self._config()
        crawl = await self._app.crawls.submit(CrawlConfig.read(config))
        note(f"Watch the crawl: {self._console}/crawls/{crawl.id}")
        if self._options.nodes:
            note(f"Watch the fleet: {self._console}/fleet")
        status = await self._ended(crawl.id)
        if self._options.as_json:
            print_json(summary(status))
        note(_result_line(status))
        if status.crawl.state is CrawlState.FAILED:
            raise NothingCrawled(status.crawl.id, status.error_message)
        if status.crawl.state is CrawlState.COMPLETED:  # a user may have stopped the crawl
            await self._judged(crawl.id)
        if not self._options.leaves:
            await self._watch(config | {"recrawl_of": crawl.id, "baseline": "previous"})

    def _config(self) -> dict[str, Any]:
        """Return the options of the crawls."""
        walkers = max(1, min(self._options.nodes, AT_ONCE))
        config = {
            "seeds": [f"{self._home}/"],
            "project": "demo",
            "analyze": True,
            "gate": "release",
            "workers": walkers,
        }
        config |= {"speed": "max"} if self._options.is_fast else {"concurrency": AT_ONCE // walkers}
        if has_browser(self._app.settings.render):
            note(f"Chromium was found: the {TANKS} pages that need scripts are rendered.")
            return config | {"render": "auto"}
        note(
            f"No Chromium was found, so the {TANKS} pages that need scripts are skipped; install Chromium to render"
            f" them."
        )
        return config | {"exclude": [f"{self._home}{TANK_LIST}/[0-9]"]}

    async def _ended(self, crawl_id: str) -> CrawlStatus:
        """Wait for the end of the crawl and return it; print its progress every few seconds."""
        looks = 0
        while True:
            status = await self._app.crawls.get(crawl_id)
            if status.crawl.state in TERMINAL:
                return status
            if status.crawl.state is CrawlState.RUNNING:
                if looks % (LINE_SECONDS / LOOK_SECONDS) == 0:
                    note(f"  running: {plural(status.counts.pages, 'page')}, {status.counts.queued} queued")
                looks += 1
            await self._app.clock.sleep(LOOK_SECONDS)

    async def _judged(self, crawl_id: str) -> None:
        """Wait until the webhook reports that an analysis has ended, and print its findings."""
        ended = await self._receiver.next("analysis.completed", crawl_id)
        analysis = await self._app.audit.analyses.get(ended["analysis_id"])
        if analysis.verdict is None:
            note(f"The audit failed: {analysis.error}")
            return
        note(f"The audit has {plural(analysis.findings or 0, 'finding')}. {VERDICTS[analysis.verdict.outcome]}:")
        for reason in analysis.verdict.reasons:
            note(f"  {reason}")
        if not self._options.leaves:  # do not link to the console, which is about to end
            note(f"Look at the findings, and how to fix them: {self._console}/analyses/{analysis.id}")

    async def _watch(self, config: dict[str, Any]) -> None:
        """Publish a new edition and let a policy crawl it periodically. Print the verdict about each crawl."""
        self._site.publish()
        own = {"seeds": config.pop("seeds"), "project": config.pop("project")}
        form = PolicyForm.read({**own, "frequency": RECRAWL_EVERY, "crawl_config": config})
        policy = await self._app.plan.policies.make(form)
        note("The site has a new edition: some fish were seen again, one has left, Atlantis was found.")
        note(f"A policy crawls it now, and every {RECRAWL_EVERY}: {self._console}/policies/{policy.id}")
        note(f"The console is at {self._console}/. Press Ctrl-C to stop it and remove the demo's data.")
        while True:
            ended = await self._receiver.next("crawl.completed", policy.id)
            note(f"Look at what has changed: {self._console}/crawls/{ended['crawl_id']}/diff")
            await self._judged(ended["crawl_id"])
            self._site.publish()


def _result_line(status: CrawlStatus) -> str:
    counts_text = summary(status)
    counted = f"{messages.counts_text(status.counts)}, {in_bytes(counts_text['bytes'])}"
    rate = f"{in_time(counts_text['duration_seconds'])} ({counts_text['pages_per_second']:g} pages/s)"
    return f"{counts_text['state'].capitalize()}: {counted} in {rate}."
