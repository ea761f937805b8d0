"""The parent's side of one child: start it, talk to it, notice its silence and its death."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence

from shoal.base.clock import Clock
from shoal.base.signals import Signal, Signals
from shoal.crawl.lifecycle.crawls import CrawlEnded
from shoal.hosts.throttle import HoldsBegun
from shoal.pages.page_signals import PagesSettled, ResultsTaken
from shoal.queue.job import Fence
from shoal.queue.queue import JobsLeased, JobsMoved
from shoal.queue.states import GrantEnd
from shoal.work.ipc import (
    Alone,
    Done,
    Ended,
    Full,
    Held,
    Holding,
    Leased,
    Message,
    Moved,
    Pair,
    StoredMessage,
    Taken,
    Tick,
    decode,
    encode,
    holders,
)
from shoal.work.pidfile import PidFile

COMMAND = (sys.executable, "-m", "shoal.cli.child")


START_SECONDS = 30.0  # for the first word of a child


class ChildSpawner:
    """Where the children of a worker come from: all of one command and one environment, known to the worker's book."""

    def __init__(
        self,
        clock: Clock,
        signals: Signals,
        environment: Mapping[str, str],
        book: PidFile | None = None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._clock = clock
        self._signals = signals
        self._environment = environment
        self._book = book
        self._command = command

    async def spawn(self, *words: str) -> "ChildProcess":
        """A child of our own session, so that a Ctrl-C meant for us does not reach it."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            str(os.getpid()),
            *words,
            stdin=PIPE,
            stdout=PIPE,
            env=self._environment,
            start_new_session=True,
            limit=1 << 20,
        )
        if self._book is not None:
            self._book.add(process.pid)
        return ChildProcess(process, self._clock, self._signals, self._book)


class ChildProcess:
    """One spawned child. It is warm once it has ticked, and is replaced when it is worn."""

    def __init__(self, process: Process, clock: Clock, signals: Signals, book: PidFile | None = None) -> None:
        self._process = process
        self._book = book
        self._signals = signals
        self._clock = clock
        self._heard_at = clock.monotonic()
        self._words: asyncio.Queue[Done | None] = asyncio.Queue()
        self._listening = asyncio.create_task(self._listen())
        self.warm = False  # it has spoken: its code is read and its store open
        self.stalled_seconds = 0.0  # in which its job settled nothing although work was due, as it says itself
        self.runs = 0
        self.memory = 0
        self._holding: list[Pair] = []
        self.alone: Fence | None = None  # of a page child: the only job that it works on
        self.found_full: Callable[[str, str], None] = lambda storage, error: None  # is told of storage without room

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def gone(self) -> bool:
        return self._process.returncode is not None

    def is_silent(self, longest: float) -> bool:
        """Whether it said nothing for too long. One that has never spoken is still reading its code."""
        return self._clock.monotonic() - self._heard_at > (longest if self.warm else max(longest, START_SECONDS))

    @property
    def holding(self) -> list[Fence]:
        """Of a page child: what it said last that it holds."""
        return holders(self._holding)

    def say(self, message: Message) -> None:
        if self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(encode(message))

    async def hear(self) -> Done | None:
        """The child's next word that matters; None when it is gone."""
        return await self._words.get()

    async def _listen(self) -> None:
        stream = self._process.stdout
        try:
            while stream is not None and (line := await stream.readline()):
                self._heard_at = self._clock.monotonic()
                self.warm = True
                self._take_in(decode(line))
        except (ValueError, KeyError, TypeError):
            self.kill()  # it does not speak our language: whatever it has is better started again
        finally:
            self._words.put_nowait(None)

    def _take_in(self, message: Message) -> None:
        if isinstance(message, Tick):
            self.stalled_seconds = message.stalled_seconds
        elif isinstance(message, Done):
            self.runs += 1
            self.stalled_seconds = 0.0
            self.memory = message.memory
            self._words.put_nowait(message)
        elif isinstance(message, Holding):
            self._holding = message.leases
            self.memory = message.memory
        elif isinstance(message, Full):
            self.found_full(message.storage, message.error)
        elif isinstance(message, Alone):
            self.alone = None if message.lease is None else holders([message.lease])[0]
        elif (told := _signal_of(message, self.pid)) is not None:
            self._signals.emit(told)

    def kill(self) -> None:
        if not self.gone:
            self._process.kill()

    async def end(self) -> str:
        """Wait until it is gone; how it went, in words."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        code = await self._process.wait()
        await self._listening
        if self._book is not None:
            self._book.remove(self.pid)
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _signal_of(message: Message, pid: int) -> Signal | None:
    """What happened in a child, for those who count in this process."""
    match message:
        case StoredMessage(pages, sizes):
            return PagesSettled(pages=pages, bytes=sizes)
        case Held(holds):
            return HoldsBegun(holds=holds)
        case Ended(state, seconds):
            return CrawlEnded(state=state, seconds=seconds)
        case Moved(kind, how, count):
            return JobsMoved(kind=kind, how=GrantEnd(how), count=count)
        case Taken(kind, count, timed, seconds):
            return ResultsTaken(kind=kind, count=count, timed=timed, seconds=seconds)
        case Leased(kind, count, waited):
            return JobsLeased(kind=kind, holder=str(pid), count=count, waited_seconds=waited)
        case _:
            return None
