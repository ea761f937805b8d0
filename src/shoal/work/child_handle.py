"""In the worker: starts a child, exchanges messages with it, and notices its silence and its death."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from enum import Enum, auto

from msgspec import DecodeError

from shoal.base.clock import Clock
from shoal.base.parsing import show_duration
from shoal.base.signals import Signal, Signals
from shoal.queue.job import Fence
from shoal.work.ipc import (
    Alone,
    Browsers,
    BrowsersRestarted,
    Done,
    Full,
    Order,
    Report,
    RestartBrowsers,
    Status,
    encode,
    reports,
)
from shoal.work.pidfile import PidFile

COMMAND = (sys.executable, "-P", "-m", "shoal.process.child")
START_TIMEOUT = timedelta(seconds=30)  # maximum wait for the first message of a child

Listener = Callable[[Report], None]


class KillReason(Enum):
    """Why the worker itself killed a child."""

    SILENT = auto()  # the child's event loop is blocked
    STALLED = auto()  # the child's run settles nothing although work is due
    TAKEN = auto()  # a different worker has the job
    FORCED = auto()  # the run was stopped by force
    SHUTDOWN = auto()  # the worker is stopping, and the child took too long


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
        """Start a child in its own session, so that a Ctrl-C meant for the worker does not reach it. `listener` gets
        all reports of the child."""
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
    """A child process. It is warm once it has sent its first message."""

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
        self._restarted: asyncio.Future[str] | None = None  # set while the child's browsers are being restarted
        self._why_killed = ""
        self.killed: KillReason | None = None
        self.warm = False  # True when the child has loaded its code and opened its store
        self.runs = 0
        self.status = Status()  # the last status that the child reported
        self.alone: Fence | None = None  # the suspect that a page child runs alone
        self.browsers = Browsers(0, 0)

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

    def send(self, order: Order) -> None:
        if self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(encode(order))

    async def result(self) -> Done | None:
        """Wait for the end of the job; return None if the child died."""
        return await self._results.get()

    async def restart_browsers(self) -> str:
        """Tell the child to restart its browsers, and wait until this is done; return the error, or an empty string if
        there was none. If the child ends, its browsers end with it."""
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
                if (report := reports.decode(line)) is not None:
                    self._receive(report)
        except (ValueError, DecodeError):  # a line that is too long, or that is not a message
            self.kill()  # the child can no longer be relied on
        finally:
            self.browsers = Browsers(0, 0)
            self._set_restarted("")
            self._results.put_nowait(None)

    def _receive(self, report: Report) -> None:
        match report:
            case Status():
                self.status = report
            case Alone(lease):
                self.alone = lease
            case Browsers():
                self.browsers = report
            case BrowsersRestarted(error):
                self._set_restarted(error)
            case Done():
                self.runs += 1
                self._results.put_nowait(report)
            case Signal():
                self._signals.emit(report)
            case Full():
                pass  # only the listener handles full storage
        if self._listener is not None:
            self._listener(report)

    def _set_restarted(self, error: str) -> None:
        if self._restarted is not None:
            self._restarted.set_result(error)
            self._restarted = None

    def kill(self, reason: KillReason | None = None, why: str = "") -> None:
        """Kill the child, unless it has exited; only the first reason counts. `why` becomes part of the description of
        how the child ended."""
        if self.killed is None:
            self.killed, self._why_killed = reason, why
        if not self.gone:
            self._process.kill()

    def kill_if_silent(self, longest: timedelta) -> None:
        if self.is_silent(longest):
            self.kill(KillReason.SILENT, f"did not respond for {show_duration(longest)}")

    async def wait(self) -> str:
        """Close its stdin, wait for its exit, and return a description of how it ended."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        code = await self._process.wait()
        await self._listening
        if self._pidfile is not None:
            self._pidfile.remove(self.pid)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"{self._why_killed}, and {how}" if self._why_killed else how
