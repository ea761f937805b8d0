"""Convert pages to the requested formats, in separate processes.

A parser holds the GIL for as long as it reads: a page of 10 MB would stop all event loops of this process, no matter
which thread parses it, and the time that a page takes depends more on its markup than on its size. The processes are
started when there is a page, are limited in time and memory, and die with their parent. See docs/decisions/0061.
"""

import asyncio
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from resource import RLIMIT_AS, RLIMIT_CORE, setrlimit
from typing import Final, Literal

from msgspec import Struct, msgpack

from shoal.base.errors import BackendUnavailable, TookTooLong
from shoal.base.machine import die_with_parent
from shoal.base.parsing import show_size
from shoal.base.text import json_of
from shoal.base.url import DEFAULT_RULES, UrlRules

LARGE: Final = 100_000  # bytes; small pages do not wait for larger ones
AT_ONCE: Final = 2  # large pages, and the same number of small pages
SECONDS: Final = 60.0  # for one page, and for its wait
MEMORY: Final = 1_500_000_000  # address space of a process: twice what the worst pages need
IDLE_SECONDS: Final = 30.0  # idle time after which a process is ended; starting one takes a quarter of a second
ContentFormat = Literal["markdown", "html", "text", "links", "json"]
COMMAND: Final = (sys.executable, "-P", "-m", "shoal.extract.converter")

RESPONSE_SECONDS: Final = 5.0  # maximum response time of a process that waits for work
_OUT_OF_MEMORY: Final = 3  # exit code
_NICE: Final = 5
_SIZE: Final = 8  # bytes before each message, with its length
_NOTHING: Final = bytes(_SIZE)  # an empty message: the question to a process whether it is alive, and its response


class UnconvertedPage(Struct):
    """A page as it was received, and the requested formats."""

    url: str
    body: bytes
    content_type: str | None
    formats: Sequence[ContentFormat]
    robots: str | None = None
    rules: UrlRules = DEFAULT_RULES
    as_json: bool = False  # True: encode texts as JSON, too


class Converted(Struct):
    """The content by format, encoded: links as JSON, the other formats as UTF-8 text or, with `as_json`, as JSON.
    `is_cut`: a format is incomplete, because the page is longer than the part that is read."""

    content: dict[str, bytes]
    is_cut: bool


_pages, _results = msgpack.Decoder(UnconvertedPage), msgpack.Decoder(Converted)


def convert(page: UnconvertedPage) -> Converted:
    """Convert a page in this thread."""
    from shoal.extract.content import Content, content_as  # with the parsers
    from shoal.extract.tree import Source

    content = Content(Source(page.url, page.body, page.content_type), page.robots, page.rules)
    written: dict[str, bytes] = {}
    for name in page.formats:
        found = content_as(name, content, {})
        is_text = isinstance(found, str) and not page.as_json
        written[name] = found.encode("utf-8", "replace") if is_text else json_of(found)
    return Converted(written, content.lacks_rest(page.formats))


class Converter:
    """Converts pages for one event loop."""

    def __init__(self, seconds: float = SECONDS, memory: int = MEMORY) -> None:
        self._seconds = seconds
        self._memory = memory
        self._small, self._large = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(AT_ONCE)
        self._idle: dict[Process, asyncio.TimerHandle] = {}

    async def convert(self, page: UnconvertedPage) -> Converted:
        """Convert a page; raise `TookTooLong` or `BackendUnavailable` if it waited too long, or if its process was too
        slow, died or could not be started. Cancelling this call ends the process."""
        from shoal.extract.encoding import MAX_BYTES

        place = self._small if len(page.body) <= LARGE else self._large
        page.body = page.body[: MAX_BYTES + 1]  # no more is read; the extra byte shows that the page is longer
        try:
            await asyncio.wait_for(place.acquire(), self._seconds)
        except TimeoutError:
            raise TookTooLong(f"the wait to convert {page.url}", self._seconds) from None
        try:
            return await self._ask(await self._take(page.url), page)
        finally:
            place.release()

    def close(self) -> None:
        """End the processes that wait for work; busy processes end with their requests."""
        for process in list(self._idle):
            self._end(process)

    async def _take(self, url: str) -> Process:
        while self._idle:
            process, timer = self._idle.popitem()
            timer.cancel()
            responds = False
            try:
                responds = await _responds(process)
            finally:
                if not responds:
                    _kill(process)
            if responds:
                return process
        words = (*COMMAND, str(os.getpid()), str(self._memory))
        try:
            return await asyncio.create_subprocess_exec(*words, stdin=PIPE, stdout=PIPE, start_new_session=True)
        except OSError as error:  # no memory, or too many processes or files
            why = f"the process that converts it cannot be started: {error.strerror}"
            raise BackendUnavailable(f"the content of {url}", why, "try again later") from None

    async def _ask(self, process: Process, page: UnconvertedPage) -> Converted:
        assert process.stdin is not None
        assert process.stdout is not None
        result: Converted | None = None
        try:
            async with asyncio.timeout(self._seconds):
                if not process.stdin.is_closing():  # it has died already
                    process.stdin.write(_message(page))
                size = int.from_bytes(await process.stdout.readexactly(_SIZE))
                result = _results.decode(await process.stdout.readexactly(size))
                return result
        except TimeoutError:
            raise TookTooLong(f"the conversion of {page.url}", self._seconds) from None
        except (EOFError, ConnectionError):
            with suppress(TimeoutError):  # asyncio does not learn the exit code if kill() finds it first
                await asyncio.wait_for(process.wait(), RESPONSE_SECONDS)
            _kill(process)
            what, why = f"the content of {page.url}", self._how_it_ended(await process.wait())
            raise BackendUnavailable(what, why, "ask for its html or its links, or try again") from None
        finally:
            if result is None:
                _kill(process)
            else:
                self._idle[process] = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._end, process)

    def _end(self, process: Process) -> None:
        self._idle.pop(process).cancel()
        _kill(process)

    def _how_it_ended(self, code: int) -> str:
        if code == _OUT_OF_MEMORY:
            return f"converting it needs more than {show_size(self._memory)} of memory"
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"the process that converted it {how}"


def _message(value: Struct) -> bytes:
    """Return a message for or from a process, preceded by its length."""
    message = bytearray(_SIZE)
    msgpack.Encoder().encode_into(value, message, _SIZE)
    message[:_SIZE] = (len(message) - _SIZE).to_bytes(_SIZE)
    return bytes(message)


async def _responds(process: Process) -> bool:
    """Return whether a process responds: it may have died or been stopped while it waited for work."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(RESPONSE_SECONDS):
            process.stdin.write(_NOTHING)
            return await process.stdout.readexactly(_SIZE) == _NOTHING
    except (TimeoutError, EOFError, OSError, RuntimeError):  # RuntimeError if the pipe is known to be closed
        return False


def _kill(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()


def main() -> None:
    """Convert the pages that arrive on stdin. This is the main function of a separate process."""
    parent, memory = map(int, sys.argv[1:])
    die_with_parent(parent)
    with suppress(ValueError, OSError):  # macOS has no such limit
        setrlimit(RLIMIT_AS, (memory, memory))
    setrlimit(RLIMIT_CORE, (0, 0))
    os.nice(_NICE)  # the event loop of the parent has priority
    logging.disable()  # drop log messages of libraries about a page
    received, sent = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        while size := received.read(_SIZE):
            sent.write(
                size if size == _NOTHING else _message(convert(_pages.decode(received.read(int.from_bytes(size)))))
            )
            sent.flush()
    except (MemoryError, SystemError):  # the parser raises SystemError if it gets no memory
        os._exit(_OUT_OF_MEMORY)


if __name__ == "__main__":
    main()
