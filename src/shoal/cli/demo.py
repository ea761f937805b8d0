"""`shoal demo`: the whole platform on a temporary store, crawling a small built-in site."""

import asyncio
import socket
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import uvloop

from shoal.app import App, opened
from shoal.base.errors import BackendUnavailable, NothingCrawled
from shoal.base.parsing import Address, is_loopback
from shoal.base.settings_loader import load
from shoal.base.text import plural
from shoal.cli.demo_site import DemoSite
from shoal.cli.output import in_bytes, in_time, print_answer, print_json, summary
from shoal.crawl import journal_messages as messages
from shoal.crawl.crawl import CrawlConfig
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.states import TERMINAL, CrawlState
from shoal.observe.logs import note
from shoal.process.controller import Controller
from shoal.process.http import address_of, open_socket
from shoal.process.lifetime import watched
from shoal.process.worker import workers_of

LOOK_SECONDS = 0.5


@click.command()
@click.option("--exit", "leave", is_flag=True, help="Exit when the crawl has ended, without waiting for Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print the address and the summary as JSON, one object per line.")
def demo(leave: bool, as_json: bool) -> None:
    """Crawl a built-in demo site and show it in the console. Its data is removed at the end."""
    with TemporaryDirectory(prefix="shoal-demo-", ignore_cleanup_errors=True) as folder:
        uvloop.run(_demo(Path(folder), leave=leave, as_json=as_json))


async def _demo(folder: Path, *, leave: bool, as_json: bool) -> None:
    flags = {
        "SHOAL_DATA_DIR": str(folder),
        "DATABASE_URL": f"sqlite:///{folder}/shoal.db",
        "SHOAL_LOG_LEVEL": "warning",
        "SHOAL_TLS_CERT": "",
        "SHOAL_TLS_KEY": "",
    }
    listen = load(flags).settings.serve.listen
    listener = _open_listener(listen if is_loopback(listen.host) else Address("127.0.0.1", listen.port))
    flags["SHOAL_LISTEN"] = address_of(listener)
    loaded = load(flags)
    _say_address(listener, as_json=as_json)
    signals, metrics = watched(loaded.settings)
    async with (
        opened(loaded.settings, signals) as app,
        workers_of(app, loaded, flags, 1) as team,
        DemoSite(app.clock) as site,
    ):
        demo = Demo(app, Controller(app, metrics, listener, team), site.address)
        await demo.run(leave=leave, as_json=as_json)


def _open_listener(listen: Address) -> socket.socket:
    """Return a socket on the usual port, or on a free one if it is taken; listen at once, so that no other process gets
    it."""
    try:
        listener = open_socket(listen)
        listener.listen()
    except (BackendUnavailable, OSError):
        listener = open_socket(Address("127.0.0.1", 0))
        listener.listen()
    return listener


def _say_address(listener: socket.socket, *, as_json: bool) -> None:
    host, port = listener.getsockname()[:2]
    address = f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
    print_answer({"console": address}, f"Console: {address}", as_json=as_json)


class Demo:
    """The demo's crawl, from submission to summary, next to the controller that serves the console."""

    def __init__(self, app: App, controller: Controller, seed: str) -> None:
        self._app = app
        self._controller = controller
        self._seed = seed

    async def run(self, *, leave: bool, as_json: bool) -> None:
        serving = asyncio.create_task(self._controller.run())
        crawling = asyncio.create_task(self._crawl(as_json=as_json))
        try:
            await asyncio.wait({serving, crawling}, return_when=asyncio.FIRST_COMPLETED)
            if crawling.done():
                self._finish(crawling.result(), leave=leave)
            await serving
        finally:
            crawling.cancel()
            self._controller.stop()
            await asyncio.gather(serving, crawling, return_exceptions=True)

    async def _crawl(self, *, as_json: bool) -> CrawlStatus:
        # Starting the demo names this host and port; the crawl may request no other loopback address.
        config = CrawlConfig(seeds=[self._seed], speed="max", project="demo")
        crawl = await self._app.crawls.submit(config, named=[self._seed])
        note(f"Crawling the demo site at {self._seed}")
        status = await self._ended(crawl.id)
        if as_json:
            print_json(summary(status))
        note(_result_line(status))
        return status

    async def _ended(self, crawl_id: str) -> CrawlStatus:
        """Wait for the end of the crawl and return it; print its progress whenever it changes."""
        shown = ""
        while True:
            status = await self._app.crawls.get(crawl_id)
            if status.crawl.state in TERMINAL:
                return status
            line = (
                f"  {status.crawl.state.value}: {plural(status.counts.pages, 'page')}, {status.counts.queued} waiting"
            )
            if line != shown:
                note(line)
            shown = line
            await self._app.clock.sleep(LOOK_SECONDS)

    def _finish(self, status: CrawlStatus, *, leave: bool) -> None:
        if status.crawl.state is CrawlState.FAILED:
            raise NothingCrawled(status.crawl.id, status.error_message)
        if leave:
            self._controller.stop()
        else:
            note(f"The console is at {self._controller.address}/. Press Ctrl-C to stop it and remove the demo's data.")


def _result_line(status: CrawlStatus) -> str:
    counts_text = summary(status)
    counted = f"{messages.counts_text(status.counts)}, {in_bytes(counts_text['bytes'])}"
    rate = f"{in_time(counts_text['duration_seconds'])} ({counts_text['pages_per_second']:g} pages/s)"
    return f"{counts_text['state'].capitalize()}: {counted} in {rate}."
