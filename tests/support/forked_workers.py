"""Runs the tests in several processes: `pytest --workers 4`.

The workers are forked after the collection, so that modules are imported and tests are collected once. Each takes one
group of tests after the other from a list that all share, and sends its reports to the parent, which prints them. A
test that ends its worker has failed; a new worker takes over the rest.
"""

import multiprocessing
import os
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

import pytest

WORKER = "TEST_WORKER"  # the number of a worker, in its environment
STOPPED = -1  # instead of the number of the next group
END_SECONDS = 60
FORK = multiprocessing.get_context("fork")

Group = Sequence[pytest.Item]
Message = tuple[str, Any]  # taken: the number of a group; started: None; report: a dictionary; error: text; done: None


class SharedNumber(Protocol):
    """A number in memory that all workers share."""

    value: int

    def get_lock(self) -> Any: ...


@dataclass
class Worker:
    """A worker as the parent sees it."""

    number: int
    process: BaseProcess
    messages: Connection
    running: pytest.Item | None = None
    waiting: deque[pytest.Item] = field(default_factory=deque)  # tests that it has taken
    is_done: bool = False


class ForkedWorkers:
    """The parent: replaces pytest's loop over all tests. `on_fork` is called in every new worker."""

    def __init__(
        self, count: int, groups_of: Callable[[list[pytest.Item]], list[Group]], on_fork: Callable[[], None]
    ) -> None:
        self._count = count
        self._groups_of = groups_of
        self._on_fork = on_fork

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.config.option.collectonly or session.testsfailed:
            return None
        reporter = session.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter.showfspath = False  # tests of several files run at the same time
        self._session = session
        self._groups = self._groups_of(session.items)
        self._next: SharedNumber = FORK.Value("i", 0)
        self._folder: Path = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        self._workers = [self._start(number, ()) for number in range(min(self._count, len(self._groups)))]
        try:
            self._supervise()
        finally:
            self._stop()
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True

    def _start(self, number: int, first: Iterable[pytest.Item]) -> Worker:
        messages, channel = FORK.Pipe(duplex=False)
        test_process = _TestProcess(self._session, self._groups, self._next, channel, self._folder / f"worker{number}")
        process = FORK.Process(target=test_process.run, args=(number, list(first), self._on_fork))
        process.start()
        channel.close()
        return Worker(number, process, messages, waiting=deque(first))

    def _supervise(self) -> None:
        while self._workers:
            ready = wait([worker.messages for worker in self._workers])
            for worker in [worker for worker in self._workers if worker.messages in ready]:
                message = _next_message(worker)
                if message is None:
                    self._workers.remove(worker)
                    self._replace(worker)
                else:
                    self._receive(worker, message)
            if self._session.shouldfail or self._session.shouldstop:
                return

    def _receive(self, worker: Worker, message: Message) -> None:
        hook, (kind, content) = self._session.config.hook, message
        if kind == "taken":
            worker.waiting += self._groups[content]
        elif kind == "started":
            worker.running = worker.waiting.popleft()
        elif kind == "report":
            report = hook.pytest_report_from_serializable(config=self._session.config, data=content)
            hook.pytest_runtest_logreport(report=report)
            if report.when == "teardown":
                hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)
        elif kind == "error":
            raise RuntimeError(f"worker {worker.number} failed outside of a test:\n{content}")
        else:
            worker.is_done = True

    def _replace(self, worker: Worker) -> None:
        """Continue after the end of a worker: if it ended early, its test has failed, and a new one has the rest."""
        worker.process.join()
        if worker.is_done:
            return
        if worker.running is None:
            raise RuntimeError(f"worker {worker.number} ended before its first test: {worker.process.exitcode}")
        test = worker.running
        why = f"worker {worker.number} ended during this test, with the exit code {worker.process.exitcode}"
        report = pytest.TestReport(test.nodeid, test.location, {}, "failed", why, "call")
        self._session.config.hook.pytest_runtest_logreport(report=report)
        self._workers.append(self._start(worker.number, worker.waiting))

    def _stop(self) -> None:
        """End the workers that are left after an interruption, each after its test."""
        self._next.value = STOPPED
        for worker in self._workers:
            while worker.messages.poll(END_SECONDS) and _next_message(worker) is not None:
                continue
            worker.process.join(END_SECONDS)
            worker.process.kill()


def _next_message(worker: Worker) -> Message | None:
    """Return None if the worker has ended."""
    try:
        message: Message = worker.messages.recv()
    except EOFError:
        return None
    return message


class _TestProcess:
    """The forked process of a worker."""

    def __init__(
        self, session: pytest.Session, groups: list[Group], next_group: SharedNumber, channel: Connection, folder: Path
    ) -> None:
        self._session = session
        self._config = session.config
        self._groups = groups
        self._next = next_group
        self._channel = channel
        self._folder = folder

    def run(self, number: int, first: Group, on_fork: Callable[[], None]) -> None:
        os.environ[WORKER] = str(number)
        try:
            on_fork()
            self._separate_from_parent()
            for test, following in pairwise(chain(first, self._taken(), [None])):
                self._channel.send(("started", None))
                self._config.hook.pytest_runtest_protocol(item=test, nextitem=following)
                if self._next.value == STOPPED or self._session.shouldfail or self._session.shouldstop:
                    break
        except KeyboardInterrupt:
            pass  # the parent reports it
        except Exception:
            self._channel.send(("error", traceback.format_exc()))
        self._session._setupstate.teardown_exact(None)  # after a break; else all is torn down
        self._channel.send(("done", None))

    def _separate_from_parent(self) -> None:
        """Give this process its own output, folder for temporary files and captured text."""
        plugins = self._config.pluginmanager
        plugins.unregister(name="terminalreporter")
        plugins.register(self)
        self._config.option.basetemp = self._folder
        self._config._tmp_path_factory = pytest.TempPathFactory.from_config(  # type: ignore[attr-defined]
            self._config, _ispytest=True
        )
        capture = plugins.getplugin("capturemanager")
        if capture is not None:  # it writes to a file that the parent has opened
            capture.stop_global_capturing()
            capture.start_global_capturing()

    def _taken(self) -> Iterator[pytest.Item]:
        """Take one group after the other, each before the last test of the group before it runs: that test tears down
        the fixtures that the next one does not use."""
        while True:
            with self._next.get_lock():
                number = self._next.value
                if not 0 <= number < len(self._groups):
                    return
                self._next.value = number + 1
            self._channel.send(("taken", number))
            yield from self._groups[number]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._channel.send(("report", data))
