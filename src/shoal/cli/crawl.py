"""`shoal crawl`: run a crawl in this process, stored like any other crawl."""

import asyncio
import os
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_fields
from pathlib import Path
from typing import Any, Literal

import click
import uvloop
from msgspec.structs import replace

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
from shoal.cli.api_client import ApiTarget, store_option
from shoal.cli.completion import complete_id
from shoal.cli.crawl_outputs import NO_OUTPUTS, OutputFlags, RememberedOutputs
from shoal.cli.options import (
    CHANGES,
    LINKS_HELP,
    OUTPUT_HELP,
    SECTIONS,
    crawl_flags,
    flag_of,
    given_values,
    may_overwrite,
    table_flags,
)
from shoal.cli.output import exit_code_of, print_line, print_rows, rows_of, summary
from shoal.cli.progress import Progress, Screen, first_line, screen
from shoal.cli.root import Command
from shoal.cli.seeds import Seeds, seeds_option
from shoal.crawl.crawl import Crawl, CrawlConfig
from shoal.crawl.lifecycle.change import CrawlChange
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.states import TERMINAL, WALKED, CrawlState
from shoal.egress import Limits
from shoal.extract.flags import PageFlag
from shoal.observe.logs import note
from shoal.pages.export.output import Outputs
from shoal.pages.export.table import PageTable
from shoal.pages.page import Page
from shoal.process.crawl_request import CrawlRequest, read_config, read_id
from shoal.process.lifetime import StallWatch, quiet, reduce_collections
from shoal.process.local_crawl import LocalCrawl

SummaryForm = Literal["rows", "json", "aside"]  # `aside`: rows on stderr, because stdout gets a different result
quiet_option = click.option(
    "-q", "--quiet", is_flag=True, help="Show no progress, only warnings, errors and the result."
)

AT_ONCE = 130  # 128 + SIGINT: the second Ctrl-C


@click.command(
    cls=Command,
    sections=SECTIONS,
    epilog="Example: shoal crawl https://example.com/ --depth 2 --output pages.jsonl",
)
@click.argument("urls", nargs=-1, metavar="URL...")
@seeds_option
@crawl_flags
@click.option("-o", "--output", multiple=True, metavar="FILE", help=OUTPUT_HELP)
@click.option("--links", multiple=True, metavar="FILE", help=LINKS_HELP)
@table_flags
@click.option("--screenshots", metavar="DIR", help="Save a screenshot of each rendered page in this folder.")
@click.option(
    "--id",
    "crawl_id",
    metavar="ID",
    help="Id of the new crawl: letters, digits, `_`, `.` and `-`.  [default: generated]",
)
@click.option(
    "--resume",
    metavar="ID",
    shell_complete=complete_id,
    help="Resume a crawl that was paused or whose process died, and complete its output files. `last` is the newest "
    "crawl.",
)
@store_option
@quiet_option
@click.option(
    "--json", "as_json", is_flag=True, help="Print the summary as one JSON object, on the last line of stdout."
)
def crawl(
    urls: Sequence[str],
    seeds_file: str | None,
    output: Sequence[str],
    links: Sequence[str],
    fields: str | None,
    explode: str | None,
    screenshots: str | None,
    crawl_id: str | None,
    resume: str | None,
    store: str | None,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Crawl a site in this process. Ctrl-C pauses the crawl and shows how to resume it; a second Ctrl-C exits
    immediately."""
    files = OutputFlags(output, links, fields, explode)
    outputs, columns = files.outputs(), files.columns
    given = given_values(options)
    if outputs.from_bodies and resume is None:
        given["keep_bodies"] = True
    if outputs.links and resume is None:
        given["links"] = True
    request = crawl_request(Seeds(urls, seeds_file), crawl_id, resume, given)
    request = with_fields(request, reads_completed=bool(files.names))
    reduce_collections()
    flags = {"DATABASE_URL": store, "SHOAL_SCREENSHOTS": screenshots and str(Path(screenshots).absolute())}
    if request.config is not None:  # check before anything is stored
        outputs.fit(table_of(request.config, *columns))
    display = Display("json" if as_json else "rows", quiet)
    return uvloop.run(_crawl(request, flags, files, outputs, display))


def crawl_request(seeds: Seeds, crawl_id: str | None, resume: str | None, given: dict[str, Any]) -> CrawlRequest:
    """Read the flags: seeds and options of a new crawl, or the crawl to resume and the options to change."""
    if not seeds and resume is None:
        raise UsageError("No URL given", "give at least one URL, --seeds FILE or --resume ID")
    if seeds and resume is not None:
        raise UsageError("URLs and --resume cannot be combined", "leave one of them out")
    if resume is None:
        config = read_config({"seeds": [seed.url for seed in seeds.first], **given}, flag_of)
        wanted = None if crawl_id is None else read_id(crawl_id, "--id")
        more = ([seed.url for seed in batch] for batch in seeds.more()) if seeds.has_more else None
        return CrawlRequest(config, wanted, more=more)
    if crawl_id is not None:
        raise UsageError("--id and --resume cannot be combined", "pass one of them")
    changed = {name: value for name, value in given.items() if name in CHANGES}
    if ignored := [name for name in given if name not in CHANGES]:
        note(f"A resumed crawl keeps these options; ignored: {', '.join(map(flag_of, ignored))}")
    change = CrawlChange.read(changed, strict=False, called=flag_of) if changed else None
    return CrawlRequest(resume=read_id(resume, "--resume"), change=change)


@dataclass(frozen=True, slots=True)
class Display:
    """Settings of the display: the form of the summary, and whether progress is shown."""

    summary_form: SummaryForm = "rows"
    quiet: bool = False


def table_of(config: CrawlConfig, fields: Sequence[str] | None, explode: str | None) -> PageTable:
    """Return the columns and rows that output files have for each page of a crawl."""
    return PageTable(fields, explode, rules=config.rules, is_open=bool(config.hooks))


async def _crawl(
    request: CrawlRequest, flags: dict[str, str | None], files: OutputFlags, outputs: Outputs, display: Display
) -> int:
    """Run or resume a crawl. A resumed crawl for which the user names no outputs writes those of the earlier run."""
    settings = load(flags).settings
    if request.config is not None:
        outputs.check(may_overwrite())
    async with opened(settings, quiet(settings)) as app:
        if request.more is not None and not display.quiet:
            note("Adding the seeds of the file.")
        crawl = await request.find(app)
        if request.change is not None and crawl.state is CrawlState.COMPLETED:
            ignored = ", ".join(map(flag_of, request.change.plain()))
            note(f"{crawl.id} is completed, so only its outputs are written; ignored: {ignored}")
        remembered = RememberedOutputs(settings, crawl)
        earlier = remembered.load() if request.config is None and not files.names else None
        if earlier is not None:
            files = replace(earlier, fields=files.fields or earlier.fields, explode=files.explode or earlier.explode)
            if not display.quiet:
                note(f"Writing the outputs of the earlier run: {', '.join(files.names)}")
            outputs = files.outputs()
        if request.config is None:
            outputs.fit(table_of(crawl.config, *files.columns))
            outputs.check(may_overwrite())
        if not display.quiet:
            note(first_line(crawl, request.config, settings))
        outputs.check_bodies(crawl.id, crawl.config.keep_bodies)
        outputs.check_links(crawl.id, crawl.config.links)
        target = ApiTarget(flags["DATABASE_URL"])
        again = [*files.words, *(("--screenshots", shots) if (shots := flags["SHOAL_SCREENSHOTS"]) else ())]
        how_to_go_on = f"{target.command('crawl', '--resume', crawl.id)} {shlex.join(again)}".rstrip()
        is_copied = earlier is None and crawl.state is CrawlState.COMPLETED
        command = CrawlCommand(
            app,
            crawl,
            outputs,
            how_to_go_on=how_to_go_on,
            target=target,
            display=display,
            remembered=None if is_copied else remembered,
            files=files,
        )
        return await command.run()


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
    """Counts the pages that may lack content that only a browser adds, and keeps the first URLs of each kind."""

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

    def told(self, *, is_rendering: bool) -> dict[str, int]:
        """Print the counts; if the crawl does not render pages, also print the flag that turns rendering on. Return the
        counts for the summary."""
        fix = "" if is_rendering else "; crawl with --render auto"
        for name, count in self._counts.items():
            more = f", and {count - MOST_NAMED:,} more" if count > MOST_NAMED else ""
            note(f"{DOUBTFUL[name][0]}: {count:,} ({', '.join(self._first[name])}{more}){fix}")
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
        target: ApiTarget,
        display: Display,
        remembered: RememberedOutputs | None = None,
        files: OutputFlags = NO_OUTPUTS,
    ) -> None:
        self._app = app
        self._crawl = crawl
        self._outputs = outputs
        self._how_to_go_on = how_to_go_on
        self._target = target
        self._display = display
        self._to_stdout = display.summary_form != "aside" and not outputs.to_stdout  # for the summary
        self._screen: Screen | None = None
        self._local_crawl: LocalCrawl | None = None
        self._remembered = remembered
        self._files = files
        self._main = asyncio.current_task()
        self._interrupts = 0
        self._pausing: asyncio.Task[None] | None = None
        self._began = app.clock.monotonic()
        self._rendering = RenderingTally()

    async def run(self) -> int:
        """Run the crawl and print its summary. Return the exit code, or raise the error that determines it."""
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
        """Return the flag for a field of the crawl. Seeds are shown as URLs, because a user who resumes the crawl has
        not given them."""
        seeds = {f"seeds[{place}]": seed for place, seed in enumerate(self._crawl.config.seeds)}
        return f"Seed {redact_url(seeds[field])}" if field in seeds else flag_of(field)

    async def _walk(self) -> None:
        async with LocalCrawl(self._app, self._crawl) as local_crawl:
            self._local_crawl = local_crawl
            if self._remembered is not None:
                self._remembered.keep(self._files)
            limits = Limits.of(self._app.settings.egress)
            await self._outputs.open(self._crawl.id, self._app.clock.micros(), limits)
            try:
                await self._follow(local_crawl)
                if (await local_crawl.status()).crawl.state in TERMINAL:
                    await self._outputs.complete()
                    await self._write_links()
                    if self._remembered is not None:
                        self._remembered.forget()
                elif self._outputs.links:
                    note("The links are written when the crawl has ended.")
            finally:
                self._outputs.leave()

    async def _write_links(self) -> None:
        if self._outputs.links:
            from shoal.crawl.links import CrawlLinks  # few crawls write them

            links = CrawlLinks(self._app.database, self._crawl, self._app.settings.crawl.max_url_length)
            await self._outputs.write_links(links.records())

    async def _follow(self, local_crawl: LocalCrawl) -> None:
        self._screen = screen(quiet=self._display.quiet)
        longest = self._app.settings.work.child_silence.total_seconds()
        watch = StallWatch(longest, self._how_to_go_on, self._app.clock, note)
        with watch:
            await self._show_pages(local_crawl, self._screen)

    async def _show_pages(self, local_crawl: LocalCrawl, screen: Screen) -> None:
        async with Progress(local_crawl, self._app.clock, screen):
            while pages := await local_crawl.next():
                self._rendering.count(pages)
                if self._outputs:
                    await self._outputs.write(pages, self._app.bodies)
        if self._pausing is not None:
            await self._pausing

    def _interrupt(self) -> None:
        self._interrupts += 1
        if self._interrupts > 1:
            self._end_at_once()
        if self._local_crawl is None:  # the crawl is not leased yet, so there is nothing to pause
            assert self._main is not None
            self._main.cancel()
        elif self._pausing is None:
            note("Pausing; press Ctrl-C again to exit immediately.")
            self._pausing = asyncio.create_task(self._pause(self._local_crawl))

    async def _pause(self, local_crawl: LocalCrawl) -> None:
        try:
            await local_crawl.pause("interrupted")
        except (BackendUnavailable, LeaseLost) as error:
            note(f"{error.message} Press Ctrl-C again to exit immediately.")

    def _end_at_once(self) -> None:
        """Exit now, without a commit or clean-up. The crawl can be resumed immediately."""
        if self._screen is not None:
            self._screen.close()
        note(f"Exited without pausing; resume with `{self._how_to_go_on}`.")
        os._exit(AT_ONCE)

    async def _tell(self, left_for: str | None = None) -> CrawlStatus:
        status = await self._app.crawls.get(self._crawl.id)
        if left_for is not None and status.crawl.state in WALKED:
            # The store could not be updated. But the crawl has no walker any more, so it can be resumed immediately.
            status = replace(status, crawl=replace(status.crawl, state=CrawlState.PAUSED, state_reason=left_for))
        totals = summary(status, self._app.clock.monotonic() - self._began, self._target)
        totals |= self._rendering.told(is_rendering=self._crawl.config.render != "never")
        to_stdout = self._to_stdout
        if self._display.summary_form == "json":
            print_line(totals, to_stdout=to_stdout)
        else:
            print_rows(rows_of(status, totals, self._outputs.locations), to_stdout=to_stdout)
        return status

    async def _print_interrupted(self, why: str) -> None:
        """Print the summary of an interrupted crawl if the store can be read. The caller's error message has the
        reason."""
        try:
            await self._tell(left_for=why)
        except (ShoalError, OSError):
            return
        note(f"Resume with `{self._how_to_go_on}`.")
