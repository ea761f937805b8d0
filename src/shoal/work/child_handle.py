"""In the worker: starts a child, exchanges messages with it, and notices its silence and its death."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from shoal.base.clock import Clock
from shoal.base.signals import Signal, Signals
from shoal.crawl.lifecycle.transitions import CrawlEnded
from shoal.hosts.throttle import HoldsBegun
from shoal.pages.page import PagesSettled, ResultsTaken
from shoal.queue.job import Fence
from shoal.queue.moves import JobsMoved
from shoal.queue.queue import JobsLeased
from shoal.queue.states import GrantEnd
from shoal.web.renderer import PageRendered
from shoal.work.ipc import (
    Alone,
    Browsers,
    BrowsersRestarted,
    Done,
    Ended,
    Full,
    Held,
    Holding,
    Leased,
    Message,
    Moved,
    Pair,
    Rendered,
    RestartBrowsers,
    ResultsStored,
    StoredMessage,
    Tick,
    decode,
    encode,
    fences_of,
)
from shoal.work.pidfile import PidFile

COMMAND = (sys.executable, "-m", "shoal.process.child")
START_TIMEOUT = timedelta(seconds=30)  # for the first message of a child

Listener = Callable[[Message], None]


class ChildSpawner:
    """Starts the children of a worker, all with one command and one environment, and records them in its pid file."""

    def __init__(
        self,
        clock: Clock,
        signals: Signals,
        environment: Mapping[str, str],
        pidfile: PidFile | None = None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._clock = clock
        self._signals = signals
        self._environment = environment
        self._pidfile = pidfile
        self._command = command

    async def spawn(self, *arguments: str, listener: Listener | None = None) -> "ChildProcess":
        """Start a child in a session of its own, so that a Ctrl-C meant for the worker does not reach it. `listener`
        gets what a page child says about its leases, storage and results."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            str(os.getpid()),
            *arguments,
            stdin=PIPE,
            stdout=PIPE,
            env=self._environment,
            start_new_session=True,
            limit=1 << 20,
        )
        if self._pidfile is not None:
            self._pidfile.add(process.pid)
        return ChildProcess(process, self._clock, self._signals, self._pidfile, listener)


class ChildProcess:
    """A child that was started. It is warm once it has sent a message."""

    def __init__(
        self,
        process: Process,
        clock: Clock,
        signals: Signals,
        pidfile: PidFile | None = None,
        listener: Listener | None = None,
    ) -> None:
        self._process = process
        self._pidfile = pidfile
        self._signals = signals
        self._clock = clock
        self._listener = listener
        self._last_message_at = clock.monotonic()
        self._results: asyncio.Queue[Done | None] = asyncio.Queue()
        self._listening = asyncio.create_task(self._listen())
        self.warm = False  # it has loaded its code and opened its store
        self.stalled_seconds = 0.0  # how long its job has settled nothing although work was due
        self.runs = 0
        self.memory = 0
        self.browsers = 0
        self.browser_pages = 0  # in those browsers
        self._restarted: asyncio.Future[str] | None = None  # while its browsers are being restarted
        self._holding: list[Pair] = []
        self.version = 0  # version of the configuration that a page child has in effect
        self.alone: Fence | None = None  # the suspect that a page child runs by itself

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def gone(self) -> bool:
        return self._process.returncode is not None

    def is_silent(self, longest: timedelta) -> bool:
        """Return whether the child has sent nothing for too long. Before its first message it may still be starting."""
        allowed = longest if self.warm else max(longest, START_TIMEOUT)
        return self._clock.monotonic() - self._last_message_at > allowed.total_seconds()

    @property
    def holding(self) -> list[Fence]:
        """The leases that a page child last said it holds."""
        return fences_of(self._holding)

    def send(self, message: Message) -> None:
        if self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(encode(message))

    async def result(self) -> Done | None:
        """Wait for the end of the job; None if the child died."""
        return await self._results.get()

    async def restart_browsers(self) -> str:
        """Have the child restart its browsers and wait until it has; return the error, or an empty string if there was
        none. A child that ends takes its browsers along."""
        if self._listening.done():
            return ""
        if self._restarted is None:
            self._restarted = asyncio.get_running_loop().create_future()
            self.send(RestartBrowsers())
        return await asyncio.shield(self._restarted)

    async def _listen(self) -> None:
        stream = self._process.stdout
        try:
            while stream is not None and (line := await stream.readline()):
                self._last_message_at = self._clock.monotonic()
                self.warm = True
                self._receive(decode(line))
        except (ValueError, KeyError, TypeError):
            self.kill()  # its output is not a message, so nothing else that it does can be relied on
        finally:
            self._receive(Browsers(0, 0))
            self._receive(BrowsersRestarted())
            self._results.put_nowait(None)

    def _receive(self, message: Message) -> None:
        match message:
            case Tick(stalled_seconds):
                self.stalled_seconds = stalled_seconds
            case Done():
                self.runs += 1
                self.stalled_seconds = 0.0
                self.memory = message.memory
                self._results.put_nowait(message)
            case Holding(leases, memory, version):
                self._holding, self.memory, self.version = leases, memory, version
                self._notify(message)
            case Full():
                self._notify(message)
            case Browsers(count, pages):
                self.browsers, self.browser_pages = count, pages
            case BrowsersRestarted(error):
                if self._restarted is not None:
                    self._restarted.set_result(error)
                    self._restarted = None
            case Alone(lease):
                self.alone = None if lease is None else fences_of([lease])[0]
            case _:
                self._notify(message)
                if (emitted := _signal_of(message, self.pid)) is not None:
                    self._signals.emit(emitted)

    def _notify(self, message: Message) -> None:
        if self._listener is not None:
            self._listener(message)

    def kill(self) -> None:
        if not self.gone:
            self._process.kill()

    async def wait(self) -> str:
        """Close its stdin, wait for its exit, and return a description of how it ended."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        code = await self._process.wait()
        await self._listening
        if self._pidfile is not None:
            self._pidfile.remove(self.pid)
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _signal_of(message: Message, pid: int) -> Signal | None:
    """Translate a message into the signal that it relays; metrics are counted in the worker's process."""
    match message:
        case StoredMessage(pages, sizes):
            return PagesSettled(pages=pages, bytes=sizes)
        case Held(holds):
            return HoldsBegun(holds=holds)
        case Ended(state, seconds):
            return CrawlEnded(state=state, seconds=seconds)
        case Moved(kind, how, count):
            return JobsMoved(kind=kind, how=GrantEnd(how), count=count)
        case ResultsStored(kind, count, timed, seconds):
            return ResultsTaken(kind=kind, count=count, timed=timed, seconds=seconds)
        case Rendered(outcome, seconds, requests):
            return PageRendered(outcome=outcome, seconds=seconds, requests=requests)
        case Leased(kind, count, waited):
            return JobsLeased(kind=kind, holder=str(pid), count=count, waited_seconds=waited)
        case _:
            return None
