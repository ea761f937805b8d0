"""The commands `fetch` and `shell`, which fetch a single page immediately."""

import asyncio
import code
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from importlib import import_module
from threading import Thread
from typing import Any, Final, Literal, Self, TypeVar, get_args

import click
import uvloop

from shoal.base.errors import BodyNotKept, InvalidInput, NothingCrawled, UsageError
from shoal.base.text import clean
from shoal.cli.options import fetch_flags, given_values, may_overwrite
from shoal.cli.output import json_option
from shoal.cli.root import Command
from shoal.cli.seeds import Seeds
from shoal.extract.content import content_as
from shoal.extract.flags import PageFlag
from shoal.extract.links import Link
from shoal.library.fetch import fetch as fetch_page
from shoal.library.page import Page
from shoal.observe.logs import note
from shoal.pages.export.formats import JsonLines
from shoal.pages.export.output import STDOUT, may_replace
from shoal.pages.export.part_file import PartFile, Stdout, check_replace

FetchFormat = Literal["markdown", "html", "text", "links", "json", "screenshot"]
HTTP_ERROR: Final = 1
PARTS: Final = ".html .text .markdown .headers .links .css() .xpath() .json(); `fetch(url)` fetches a further page."
LONGEST_BANNER: Final = 500
T = TypeVar("T")

store_option = click.option(
    "--store", metavar="URL", help="Store with the rate limits of hosts; overrides DATABASE_URL."
)


@click.command(cls=Command, epilog="Example: shoal fetch https://example.com/ --format links -o links.jsonl")
@click.argument("url", metavar="URL")
@click.option(
    "--format",
    "form",
    type=click.Choice(get_args(FetchFormat)),
    default="markdown",
    show_default=True,
    help="What to print: the readable text as Markdown or plain text, the document, its links (JSON Lines), the page "
    "record, or a picture (PNG).",
)
@fetch_flags
@click.option("-o", "--output", metavar="FILE", default=STDOUT, help="Write to FILE instead of stdout.")
@store_option
@json_option
def fetch(url: str, form: FetchFormat, output: str, store: str | None, as_json: bool, **options: Any) -> int:
    """Fetch URL as a crawl would, and print its content. Nothing is stored.

    Exit code 1: the server answered with an error (4xx, 5xx). Exit code 3: there is no page.
    """
    form = "json" if as_json else form
    given = given_values(options)
    if form == "screenshot" and given.get("render") == "never":
        raise InvalidInput("--render", "is never, but a screenshot needs a browser", "leave it out")
    file = _file(output, form)
    page = uvloop.run(fetch_page(_single(url), store=store, screenshot=form == "screenshot", **given))
    if page.status is None and form != "json":
        raise NothingCrawled(None, _problem(page))
    content = _content(page, form)
    file.begin()
    file.write([content])
    file.complete()
    return _tell(page, is_empty=not content)


def _single(text: str) -> str:
    seeds = Seeds([text])
    if seeds.count != 1:
        raise UsageError("Only one page can be fetched", "crawl a list with `shoal crawl --depth 0 --seeds FILE`")
    return seeds.first[0].url


def _file(name: str, form: FetchFormat) -> PartFile | Stdout:
    if name == STDOUT:
        if form == "screenshot" and sys.stdout.isatty():
            raise InvalidInput(
                "--output", "is missing: an image cannot be written to a terminal", "name a file, such as page.png"
            )
        return Stdout()
    file = PartFile(name)
    file.check()
    # Text, documents and images of ours cannot be recognized, so they are replaced, as by other programs that fetch.
    check_replace(name, lambda: form not in ("links", "json") or may_replace(name, Link._fields), may_overwrite())
    return file


def _content(page: Page, form: FetchFormat) -> bytes:
    if form == "json":
        return b"".join(JsonLines().rows([page.record()]))
    if form == "screenshot":
        if page.screenshot is None:
            fix = f"pass --render always, or check its type ({page.content_type}) and its error"
            raise BodyNotKept(page.url, "it was not rendered", fix)
        return page.screenshot
    content = content_as(form, page.content, page.record())
    if isinstance(content, str):
        return f"{content.rstrip()}\n".encode("utf-8", "replace") if content else b""
    return b"".join(JsonLines().rows(content))


def _tell(page: Page, *, is_empty: bool) -> int:
    """Print a note if the page is incomplete or an error. Return the exit code."""
    if page.status is None:
        note(f"{page.url}: {_problem(page)}")
        return NothingCrawled(None, "").response.exit_code
    if page.error is not None:
        note(_problem(page))
    elif page.status >= 400:
        note(f"The server answered {page.status}.")
    if page.flags & PageFlag.NOT_RENDERED:
        note("The page makes its content with scripts; fetch it with --render auto.")
    elif is_empty:
        note(f"The page has nothing to print in this format; its type is {clean(page.content_type or 'unknown')}.")
    if page.error is None and page.is_cut:
        note("The page is too long: only its first part was read.")
    return HTTP_ERROR if page.status >= 400 or page.error is not None else 0


def _problem(page: Page) -> str:
    return clean(str((page.error or {}).get("message") or "no reason is known")).rstrip(".")


@click.command(cls=Command, epilog="Example: shoal shell https://example.com/ --render auto")
@click.argument("url", metavar="URL")
@fetch_flags
@store_option
def shell(url: str, store: str | None, **options: Any) -> None:
    """Fetch URL and open a Python prompt: `page` is the page, and `fetch(url)` fetches a further page.

    If IPython is installed, the prompt is an IPython prompt.
    """
    given, first = given_values(options), _single(url)
    with _LoopThread() as loop:

        def fetch(url: str, **more: Any) -> Page:
            return loop.run(fetch_page(_single(url), store=store, **given | more))

        page = fetch(first)
        _prompt({"page": page, "fetch": fetch}, clean(f"`page` is {page!r}: {PARTS}", LONGEST_BANNER))


def _prompt(names: dict[str, Any], banner: str) -> None:
    start: Callable[..., None] | None = None
    with suppress(ImportError):
        start = import_module("IPython").start_ipython
    if start is not None:
        note(banner)
        start(argv=["--no-banner"], user_ns=names)
        return
    with suppress(ImportError):
        import_module("readline")  # importing this module gives the prompt line editing and a history
    code.interact(banner, local=names, exitmsg="")


class _LoopThread:
    """An event loop in a separate thread, so that a prompt can run coroutines."""

    def __init__(self) -> None:
        self._begun: Future[asyncio.AbstractEventLoop] = Future()
        self._left = asyncio.Event()
        self._thread = Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._loop = self._begun.result()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._left.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._begun.set_result(asyncio.get_running_loop())
        await self._left.wait()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end; Ctrl-C cancels it."""
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise
