"""Processes of `python -m shoal`, started as `subprocess` does, without the time that imports take.

Importing Shoal takes longer than most commands of a test. Each process of the run has a fork server, which imports it
once and forks the requested processes: see `fork_server`. A command with arguments for the interpreter, or with
environment variables that the interpreter or the loader reads, cannot be forked and is started as usual.
SHOAL_TEST_FORK=0 starts all as usual.
"""

import json
import os
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, AnyStr

from tests.support.patience import with_load

ROOT = Path(__file__).parents[2]
FORK = "SHOAL_TEST_FORK"
Shoal = Callable[..., tuple[int, str, str]]  # runs a command; returns its exit code, stdout and stderr
AT_START = ("PYTHON", "LD_")  # prefixes of variables that are read only when a program starts


class _Forked(subprocess.Popen[AnyStr]):
    """A process that is the fork server's child, and not ours: its exit status comes through a pipe."""

    _status = -1

    def _execute_child(self, args: Any, *more: Any) -> None:
        cwd, env, (p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite) = more[4], more[5], more[9:15]
        self._status, told = os.pipe()
        try:
            module, *words = args
            request = {"module": module, "words": words, "cwd": str(cwd), "env": env}
            channel, _ = _server()
            given: list[int] = [p2cread, c2pwrite, errwrite]  # -1: ours is inherited
            streams: list[int] = [number if stream == -1 else stream for number, stream in enumerate(given)]
            socket.send_fds(channel, [json.dumps(request).encode()], [*streams, told])
            (self.pid,) = struct.unpack("<i", channel.recv(4))
            self._child_created = True
        finally:
            os.close(told)
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]

    def _internal_poll(self, _deadstate: int | None = None, **_: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):  # type: ignore[attr-defined]
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._status == -1 or (wait_flags and not select.select([self._status], [], [], 0)[0]):
            return 0, 0
        (status,) = struct.unpack("<i", os.read(self._status, 4))
        os.close(self._status)
        self._status = -1
        return self.pid, status


def start_shoal(*words: str, cwd: Path, env: dict[str, str], **streams: Any) -> "subprocess.Popen[Any]":
    """Start `shoal WORDS`; `streams` are those of `subprocess.Popen`."""
    return start_module("shoal", *words, cwd=cwd, env=env, **streams)


def start_module(module: str, *words: str, cwd: Path, env: dict[str, str], **streams: Any) -> "subprocess.Popen[Any]":
    """Start `python -m MODULE WORDS`, whose module is one of ours."""
    if _may_fork(env):
        return _Forked([module, *words], cwd=cwd, env=env, **streams)
    return subprocess.Popen([sys.executable, "-m", module, *words], cwd=cwd, env=env, **streams)


def run_shoal(
    *words: str, cwd: Path, env: dict[str, str], timeout: float, text: bool = True, stdin: Any = None
) -> "subprocess.CompletedProcess[Any]":
    """Run `shoal WORDS` to completion, and return its exit code and its output. `timeout`: on a quiet machine."""
    pipe, source = subprocess.PIPE, subprocess.DEVNULL if stdin is None else subprocess.PIPE
    with start_shoal(*words, cwd=cwd, env=env, stdin=source, stdout=pipe, stderr=pipe, text=text) as process:
        try:
            out, err = process.communicate(stdin, with_load(timeout))
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(list(words), process.returncode, out, err)


def _may_fork(env: dict[str, str]) -> bool:
    if os.environ.get(FORK) == "0":
        return False
    return _at_start(env) == _at_start(_server_environment())


def _at_start(env: dict[str, str]) -> dict[str, str]:
    """All of them but a path to our tests, which a fork can be given."""
    found = {name: value for name, value in env.items() if name.startswith(AT_START)}
    return {name: value for name, value in found.items() if (name, value) != ("PYTHONPATH", str(ROOT))}


def _server_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1"}


@cache
def _server() -> "tuple[socket.socket, subprocess.Popen[bytes]]":
    """Start the fork server; it ends with this process, when the socket is closed."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        words = [sys.executable, "-m", "tests.support.fork_server", str(its.fileno())]
        process = subprocess.Popen(words, cwd=ROOT, env=_server_environment(), pass_fds=[its.fileno()])
    return ours, process
