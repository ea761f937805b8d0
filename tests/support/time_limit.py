"""Limits the time of each test: `--time-limit SECONDS`.

At the limit a signal makes the test fail, with the stacks of its threads and tasks. A test that is deaf to signals is
ended a third later together with its process, by a thread that does not need the interpreter; pytest-xdist reports it
as failed and continues with a new process. Without workers the run ends there, and the stacks are on its stderr.
"""

import asyncio
import contextlib
import faulthandler
import io
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Generator
from types import FrameType
from typing import IO

import pytest


class TimedOut(SystemExit):
    """The test took too long. Of all that a signal handler raises, uvloop passes on only a SystemExit and Ctrl-C."""


class TimeLimit:
    """A pytest plugin. `open_stacks` opens the file for the stacks of a test that is ended with its process."""

    def __init__(self, seconds: float, open_stacks: Callable[[], IO[str]]) -> None:
        self._seconds = seconds
        self._open_stacks = open_stacks
        self._file: IO[str] | None = None  # while a test runs

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        with self._open_stacks() as file:
            self._file = file
            signal.signal(signal.SIGALRM, self._end)
            signal.setitimer(signal.ITIMER_REAL, self._seconds)
            self._end_process_after(self._seconds * 4 / 3)
            try:
                return (yield)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                faulthandler.cancel_dump_traceback_later()
                self._file = None

    @pytest.hookimpl(trylast=True)
    def pytest_exception_interact(self) -> None:
        """Limit what is left of a test that has failed, such as its teardown: pytest has cancelled the first limit."""
        self._end_process_after(self._seconds)

    def _end_process_after(self, seconds: float) -> None:
        if self._file is not None:
            faulthandler.dump_traceback_later(seconds, exit=True, file=self._file)

    def _end(self, number: int, frame: FrameType | None) -> None:
        raise TimedOut(f"the test took longer than {self._seconds:g} s\n\n{_other_stacks()}")


def _other_stacks() -> str:
    """Return the stacks of tasks, and of threads other than this one."""
    said = io.StringIO()
    with contextlib.suppress(RuntimeError):  # there is no event loop
        for task in asyncio.all_tasks():
            task.print_stack(file=said)
    for thread in set(threading.enumerate()) - {threading.current_thread()}:
        said.write(f"Stack of {thread}:\n")
        traceback.print_stack(sys._current_frames().get(thread.ident or 0), file=said)
    return said.getvalue()
