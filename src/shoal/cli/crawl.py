"""`shoal crawl`: run a crawl in this process, stored like any other crawl."""

import asyncio
import os
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import click
import uvloop

from shoal.app import App, opened
from shoal.base.errors import (
    BackendUnavailable,
    BodiesUnavailable,
    InvalidInput,
    LeaseLost,
    SchemaMismatch,
    ShoalError,
    StorageFull,
    UsageError,
)
from shoal.base.machine import on_stop
from shoal.base.settings_loader import load
from shoal.base.text import redact_url, shorten
from shoal.cli.api_client import ApiTarget
from shoal.cli.options import OUTPUT_HELP, crawl_flags, flag_of, given_values, names_of
from shoal.cli.output import exit_code_of, print_line, print_rows, rows_of, summary
from shoal.cli.progress import Progress, Screen, screen
from shoal.crawl.crawl import Crawl
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.states import TERMINAL, WALKED, CrawlState
from shoal.egress import Limits
from shoal.extract.flags import PageFlag
from shoal.observe.logs import note
from shoal.pages.export.output import Outputs
from shoal.pages.page import Page
from shoal.process.crawl_request import CrawlRequest, read_config, read_id
from shoal.process.lifetime import StallWatch, quiet, reduce_collections
from shoal.process.local_crawl import LocalCrawl

SummaryForm = Literal["rows", "json", "aside"]  # aside: rows on stderr, because stdout gets another result

AT_ONCE = 130  # 128 + SIGINT: the second Ctrl-C


@click.command(epilog="Example: shoal crawl https://example.com/ --depth 2 --output pages.jsonl")
@click.argument("urls", nargs=-1, metavar="URL...")
@crawl_flags
@click.option("--output", multiple=True, metavar="FILE", help=OUTPUT_HELP)
@click.option("--screenshots", metavar="DIR", help="Save a screenshot of each rendered page in this folder.")
@click.option(
    "--id",
    "crawl_id",
    metavar="ID",
    help="Id of the new crawl: letters, digits, `_`, `.` and `-`.  [default: generated]",
)
@click.option("--resume", metavar="ID", help="Resume a crawl that was paused or whose process died.")
@click.option(
    "--store",
    metavar="URL",
    help="Store: sqlite:////absolute/path, sqlite:///relative/path or postgresql://…; overrides DATABASE_URL.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the summary as one JSON object, on the last line of stdout."
)
def crawl(
    urls: Sequence[str],
    output: Sequence[str],
    screenshots: str | None,
    crawl_id: str | None,
    resume: str | None,
    store: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Crawl a site in this process. Ctrl-C pauses the crawl and shows how to resume it; a second one exits at once."""
    outputs = Outputs(output)
    given = given_values(options)
    if outputs.from_bodies and resume is None:
        given["keep_bodies"] = True
    request = crawl_request(urls, crawl_id, resume, given)
    reduce_collections()
    flags = {"DATABASE_URL": store, "SHOAL_SCREENSHOTS": screenshots and str(Path(screenshots).absolute())}
    return uvloop.run(_crawl(request, flags, outputs, output, as_json))


def crawl_request(urls: Sequence[str], crawl_id: str | None, resume: str | None, given: dict[str, Any]) -> CrawlRequest:
    """Read what to crawl, or which crawl to resume."""
    if bool(urls) == (resume is not None):
        raise UsageError("Nothing to crawl: give URLs, or --resume ID", 'see "shoal crawl --help"')
    if resume is None:
        config = read_config({"seeds": list(urls), **given}, flag_of)
        return CrawlRequest(config, None if crawl_id is None else read_id(crawl_id, "--id"))
    if crawl_id is not None:
        raise UsageError("--id and --resume cannot be combined", "pass one of them")
    if given:
        note(f"A resumed crawl keeps its options; ignored: {names_of(list(given))}")
    return CrawlRequest(resume=read_id(resume, "--resume"))


async def _crawl(
    request: CrawlRequest, flags: dict[str, str | None], outputs: Outputs, names: Sequence[str], as_json: bool
) -> int:
    settings = load(flags).settings
    outputs.check()
    async with opened(settings, quiet(settings)) as app:
        crawl = await request.find(app)
        outputs.check_bodies(crawl.id, crawl.config.keep_bodies)
        store = flags["DATABASE_URL"]
        command = CrawlCommand(
            app,
            crawl,
            outputs,
            how_to_go_on=_how_to_go_on(crawl.id, store, names),
            store=store,
            summary_form="json" if as_json else "rows",
        )
        return await command.run()


def _how_to_go_on(crawl_id: str, store: str | None, outputs: Sequence[str]) -> str:
    words = ["shoal", "crawl", "--resume", crawl_id, *(["--store", store] if store else [])]
    return shlex.join(words + [word for name in outputs for word in ("--output", name)])


DOUBTFUL: dict[str, tuple[str, Callable[[Page], bool]]] = {
    "not_rendered": (
        "Pages that need a browser, but were read without one",
        lambda page: page.flags & PageFlag.NOT_RENDERED != 0,
    ),
    "stayed_empty": (
        "Rendered pages that stayed empty, or nearly so",
        lambda page: page.flags & PageFlag.STAYED_EMPTY != 0,
    ),
    "render_timeouts": (
        "Rendered pages that were read because their time was up",
        lambda page: page.render_wait == "timeout",
    ),
}
MOST_NAMED = 3


class RenderingTally:
    """Counts the pages that may lack what a browser should have added, and keeps the first URLs of each kind."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, list[str]] = {name: [] for name in DOUBTFUL}

    def count(self, pages: Sequence[Page]) -> None:
        for page in pages:
            for name, (_, applies) in DOUBTFUL.items():
                if applies(page):
                    self._counts[name] += 1
                    if self._counts[name] <= MOST_NAMED:
                        self._first[name].append(shorten(page.url, 200))

    def told(self) -> dict[str, int]:
        """Print what was counted; return the counts for the summary."""
        for name, count in self._counts.items():
            more = f", and {count - MOST_NAMED:,} more" if count > MOST_NAMED else ""
            note(f"{DOUBTFUL[name][0]}: {count:,} ({', '.join(self._first[name])}{more})")
        return dict(self._counts)


class CrawlCommand:
    """A crawl with a user at the terminal: shows progress, writes outputs, handles interrupts."""

    def __init__(
        self,
        app: App,
        crawl: Crawl,
        outputs: Outputs,
        *,
        how_to_go_on: str,
        store: str | None,
        summary_form: SummaryForm = "rows",
    ) -> None:
        self._app = app
        self._crawl = crawl
        self._outputs = outputs
        self._how_to_go_on = how_to_go_on
        self._target = ApiTarget(store)
        self._as_json = summary_form == "json"
        self._to_stdout = summary_form != "aside" and not outputs.to_stdout  # where the summary goes
        self._screen: Screen | None = None
        self._local_crawl: LocalCrawl | None = None
        self._main = asyncio.current_task()
        self._interrupts = 0
        self._pausing: asyncio.Task[None] | None = None
        self._began = app.clock.monotonic()
        self._rendering = RenderingTally()

    async def run(self) -> int:
        """Run the crawl and print its summary. Return the exit code, or raise the error that stands for it."""
        on_stop(self._interrupt)
        try:
            await self._walk()
        except asyncio.CancelledError:
            if not self._interrupts:
                raise
        except (StorageFull, BodiesUnavailable, BackendUnavailable, BrokenPipeError) as error:
            await self._print_interrupted(error.code if isinstance(error, ShoalError) else "interrupted")
            raise
        except SchemaMismatch as error:
            await self._print_interrupted(error.code)
            note(f"Once Shoal is updated, resume with `{self._how_to_go_on}`.")
            raise
        except InvalidInput as error:
            raise error.called(self._called) from None
        return exit_code_of(await self._tell(), self._how_to_go_on)

    def _called(self, field: str) -> str:
        """Return the flag of a field of the crawl. Who resumes it may not know its seeds: they are named."""
        seeds = {f"seeds[{place}]": seed for place, seed in enumerate(self._crawl.config.seeds)}
        return f"Seed {redact_url(seeds[field])}" if field in seeds else flag_of(field)

    async def _walk(self) -> None:
        async with LocalCrawl(self._app, self._crawl) as local_crawl:
            self._local_crawl = local_crawl
            limits = Limits.of(self._app.settings.egress)
            await self._outputs.open(self._crawl.id, self._app.clock.micros(), limits)
            try:
                await self._follow(local_crawl)
                if (await local_crawl.status()).crawl.state in TERMINAL:
                    await self._outputs.complete()
            finally:
                self._outputs.leave()

    async def _follow(self, local_crawl: LocalCrawl) -> None:
        self._screen = screen()
        longest = self._app.settings.work.child_silence.total_seconds()
        watch = StallWatch(longest, self._how_to_go_on, self._app.clock, note)
        with watch:
            await self._show_pages(local_crawl, self._screen)

    async def _show_pages(self, local_crawl: LocalCrawl, screen: Screen) -> None:
        async with Progress(local_crawl, self._app.clock, screen):
            while pages := await local_crawl.next():
                if self._crawl.config.render != "never":
                    self._rendering.count(pages)
                if self._outputs:
                    await self._outputs.write(pages, self._app.bodies)
        if self._pausing is not None:
            await self._pausing

    def _interrupt(self) -> None:
        self._interrupts += 1
        if self._interrupts > 1:
            self._end_at_once()
        if self._local_crawl is None:  # the crawl is not leased yet: nothing to pause
            assert self._main is not None
            self._main.cancel()
        elif self._pausing is None:
            self._say("Pausing; press Ctrl-C again to exit at once.")
            self._pausing = asyncio.create_task(self._pause(self._local_crawl))

    async def _pause(self, local_crawl: LocalCrawl) -> None:
        try:
            await local_crawl.pause("interrupted")
        except (BackendUnavailable, LeaseLost) as error:
            self._say(f"{error.message} Press Ctrl-C again to exit at once.")

    def _end_at_once(self) -> None:
        """Exit now, without a commit or clean-up. The store tolerates that, and the crawl can be resumed at once."""
        if self._screen is not None:
            self._screen.close()
        note(f"Exited at once; resume with `{self._how_to_go_on}`.")
        os._exit(AT_ONCE)

    def _say(self, text: str) -> None:
        (self._screen.say if self._screen is not None else note)(text)

    async def _tell(self, left_for: str | None = None) -> CrawlStatus:
        status = await self._app.crawls.get(self._crawl.id)
        if left_for is not None and status.crawl.state in WALKED:
            # The store could not be updated: the crawl has no walker any more, and can be resumed at once.
            status = replace(status, crawl=replace(status.crawl, state=CrawlState.PAUSED, state_reason=left_for))
        totals = summary(status, self._app.clock.monotonic() - self._began, self._target)
        totals |= self._rendering.told()
        to_stdout = self._to_stdout
        if self._as_json:
            print_line(totals, to_stdout=to_stdout)
        else:
            print_rows(rows_of(status, totals, self._outputs.locations), to_stdout=to_stdout)
        return status

    async def _print_interrupted(self, why: str) -> None:
        """Print the summary of an interrupted crawl, as far as possible; the error itself gives the reason."""
        try:
            await self._tell(left_for=why)
        except (ShoalError, OSError):
            return
        note(f"Resume with `{self._how_to_go_on}`.")
