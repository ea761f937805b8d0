"""Conversions of pages beside an event loop: they do not stop it, and what they take is bounded."""

import asyncio
import errno
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shoal.base.errors import BackendUnavailable, TookTooLong
from shoal.extract import converter
from shoal.extract.converter import ContentFormat, Converted, Converter, UnconvertedPage, convert
from tests.support.converters import (
    LARGE,
    LONGEST_PAUSE,
    SLOW,
    TEN_MB,
    converters,
    is_converter,
    longest_pause,
    no_converter,
    running_converter,
)
from tests.support.patience import in_time

AT = "http://fish.example/carp"
TYPE = "text/html; charset=utf-8"
OPEN_TAGS = ("<main>" + "".join(f"<font a{number:x}>x<p>" for number in range(10_000)))[: converter.LARGE]
SMALL = "<title>Koi</title><main><p>A koi is a carp of <b>many</b> colours.</p></main>"


def page(html: str, *formats: ContentFormat, as_json: bool = False) -> UnconvertedPage:
    return UnconvertedPage(AT, html.encode(), TYPE, formats or ("markdown",), as_json=as_json)


@pytest.fixture
async def pages() -> AsyncIterator[Converter]:
    pages = Converter()
    yield pages
    waiting = list(pages._idle)
    pages.close()
    await in_time(asyncio.gather(*(process.wait() for process in waiting)))
    await no_converter()


@pytest.mark.parametrize("form", ["html", "text", "markdown", "links"])
async def test_a_page_of_10_mb_does_not_stop_the_loop(pages: Converter, form: ContentFormat) -> None:
    working = asyncio.ensure_future(pages.convert(page(TEN_MB, form)))
    assert await longest_pause(working) < LONGEST_PAUSE
    result = working.result()
    assert result.is_cut
    assert len(result.content[form]) > 500_000


async def test_a_small_page_with_slow_markup_does_not_stop_the_loop(pages: Converter) -> None:
    working = asyncio.ensure_future(pages.convert(page(OPEN_TAGS)))
    assert await longest_pause(working) < LONGEST_PAUSE
    assert b"x" in working.result().content["markdown"]


async def test_the_content_of_a_small_page(pages: Converter) -> None:
    result = await pages.convert(page(SMALL, "markdown", "text"))
    assert result == Converted(
        {"markdown": b"A koi is a carp of **many** colours.", "text": b"A koi is a carp of many colours."}, False
    )


async def test_a_large_page_is_converted_as_a_small_one_is(pages: Converter) -> None:
    formats: tuple[ContentFormat, ...] = ("markdown", "html", "text", "links")
    for as_json in (False, True):
        assert await pages.convert(page(LARGE, *formats, as_json=as_json)) == convert(
            page(LARGE, *formats, as_json=as_json)
        )
    assert len(converters()) == 1  # it waits for the next page


async def test_a_killed_process_fails_its_own_page_only(pages: Converter) -> None:
    failing = asyncio.ensure_future(pages.convert(page(SLOW)))
    os.kill(await running_converter(), signal.SIGKILL)
    with pytest.raises(BackendUnavailable, match=rf"{AT}.*was killed by SIGKILL.*html"):
        await in_time(failing)
    assert (await pages.convert(page(LARGE, "links"))).content


async def test_a_process_that_died_without_work_is_replaced(pages: Converter) -> None:
    await pages.convert(page(LARGE, "html"))
    os.kill(await running_converter(), signal.SIGKILL)
    await no_converter()
    assert (await pages.convert(page(LARGE, "html"))).content["html"] == LARGE.encode()


async def test_a_page_that_takes_too_long_is_given_up() -> None:
    pages = Converter(seconds=0.5)
    with pytest.raises(TookTooLong, match=rf"the conversion of {AT} was stopped after 0.5 s"):
        await in_time(pages.convert(page(SLOW)))
    await no_converter()


async def test_a_page_that_waits_too_long_is_given_up() -> None:
    pages = Converter(seconds=0.5)
    failures = await in_time(
        asyncio.gather(*(pages.convert(page(SLOW)) for _ in range(converter.AT_ONCE + 1)), return_exceptions=True)
    )
    assert [str(failure).partition(" http")[0] for failure in failures] == [
        *["the conversion of"] * converter.AT_ONCE,
        "the wait to convert",
    ]
    await no_converter()


async def test_a_process_that_cannot_be_started_is_an_error_of_its_page(
    pages: Converter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "create_subprocess_exec", refuse)
        for html in (SMALL, LARGE):
            with pytest.raises(BackendUnavailable, match=rf"{AT}.*cannot be started: Too many open files"):
                await pages.convert(page(html))
    assert (await pages.convert(page(LARGE, "links"))).content


async def test_the_working_directory_is_not_on_the_path_of_a_process(
    pages: Converter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "turbohtml.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    assert (await in_time(pages.convert(page(LARGE)))).content


async def test_the_exit_code_is_reported_on_every_kind_of_loop() -> None:
    script = """
import asyncio
from shoal.base.errors import BackendUnavailable
from shoal.extract import converter

async def main():
    converter.COMMAND = (*converter.COMMAND[:1], "-c", "import os, time; os.close(1); time.sleep(0.2); os._exit(7)")
    try:
        await converter.Converter().convert(converter.UnconvertedPage("http://x/", b"x", None, ["text"]))
    except BackendUnavailable as error:
        print(error)

asyncio.run(main())
"""
    words = (sys.executable, "-c", script)
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    assert b"ended with exit code 7" in (await in_time(process.communicate()))[0]


async def test_a_page_that_takes_too_much_memory_is_given_up() -> None:
    pages = Converter(memory=100_000_000)
    with pytest.raises(BackendUnavailable, match="more than 100MB of memory"):
        await in_time(pages.convert(page(LARGE * 20)))
    await no_converter()


async def test_two_pages_are_converted_at_once_and_small_ones_do_not_wait_for_them(pages: Converter) -> None:
    slow = [asyncio.ensure_future(pages.convert(page(SLOW, "text"))) for _ in range(3)]
    await running_converter()
    await in_time(pages.convert(page(SMALL)))
    assert not any(one.done() for one in slow)
    most = 0
    while not all(one.done() for one in slow):
        most = max(most, len(converters()))
        await asyncio.wait(slow, timeout=0.02)
    assert most == converter.AT_ONCE + 1 == 3  # one of them has converted the small page
    assert len({one.result().content["text"] for one in slow}) == 1


async def test_cancelling_a_conversion_ends_its_process(pages: Converter) -> None:
    working = asyncio.ensure_future(pages.convert(page(SLOW)))
    await running_converter()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await in_time(working)
    await no_converter()


async def test_a_process_without_work_ends_after_a_while(pages: Converter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converter, "IDLE_SECONDS", 0.01)
    await pages.convert(page(LARGE, "html"))
    await no_converter()


PARENT = """
import asyncio
from shoal.extract.converter import Converter, UnconvertedPage
from tests.support.converters import SLOW, running_converter

async def main():
    working = asyncio.ensure_future(Converter().convert(UnconvertedPage("http://x/", SLOW.encode(), None, ["text"])))
    print(await running_converter(), flush=True)
    await working

asyncio.run(main())
"""


async def test_a_process_dies_with_its_parent() -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, stdout=asyncio.subprocess.PIPE)
    try:
        assert parent.stdout is not None
        pid = int(await in_time(parent.stdout.readline()))
        assert is_converter(pid)
    finally:
        parent.kill()
        await in_time(parent.wait())
    await no_converter(pid)
