"""Children of a forked worker, forked as well, without the third of a second that their imports take.

A worker has threads and connections, so it cannot be forked itself. Before it starts, it forks a *template*, which
waits for requests on a socket and forks a child for each. A child is the worker's own: a fork in between, which ends at
once, leaves it to the worker, which asks the kernel for that. So the worker waits for its children, and they die with
it, as if it had started them by itself.
"""

import asyncio
import ctypes
import json
import os
import signal
import socket
import struct
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

MARK = "SHOAL_TEST_FLEET"  # in the environment of every process of a fleet
MOST_BYTES = 200_000
FILES = 3
MODULES = ("shoal.process.child", "tests.support.page_child")
TEMPLATE = "template"  # the name of these processes; the kernel takes 15 bytes
PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36
PAUSE_SECONDS = 0.0005

Become = Callable[[dict[str, Any], list[int]], tuple[str, list[str]]]


def fork_children(become: Become) -> tuple[str, list[str]] | None:
    """Let this process fork its children from now on. Return None, but in a child: its module and its arguments."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent, name = os.getpid(), Path("/proc/self/comm").read_text().rstrip("\n")
    name_process(TEMPLATE)  # from its first moment, nobody takes the template for a child
    if os.fork() == 0:
        ours.close()
        return _serve(its, parent, become)
    name_process(name)
    its.close()
    start_as_usual = asyncio.create_subprocess_exec

    async def start(*words: Any, env: Mapping[str, str] | None = None, **options: Any) -> Any:
        module = words.index("-m") + 1 if "-m" in words else 0
        if words[0] != sys.executable or words[module] not in MODULES or env is None:
            return await start_as_usual(*words, env=env, **options)
        assert options.pop("stdin") == options.pop("stdout") == PIPE
        assert options.pop("start_new_session")
        return await _start(ours, words[module:], env, **options)

    asyncio.create_subprocess_exec = start  # type: ignore[assignment]
    return None


def process_name(mark: str, words: Sequence[str]) -> str:
    """Return the name of a forked process: its mark, and its command, or for a child of a worker its role."""
    role = next((word for word in words if not word.isdigit()), "")
    return f"{mark[:8]}-{role}"


def name_process(name: str) -> None:
    """Set the name under which the kernel lists this process."""
    _prctl(PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]))


def _prctl(option: int, value: Any) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _serve(channel: socket.socket, parent: int, become: Become) -> tuple[str, list[str]]:
    """Fork a child for each request, until the parent has ended. In a child: its module and its arguments."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is meant for the parent
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):  # a reader of the parent's output waits for all copies
        os.dup2(nothing, stream)
    while os.getppid() == parent:
        message, files, _, _ = socket.recv_fds(channel, MOST_BYTES, FILES)
        if not message:
            break
        between = os.fork()
        if between == 0:
            between = os.getpid()
            child = os.fork()
            if child:
                channel.send(struct.pack("<i", child))
                os._exit(0)
            while os.getppid() == between:
                time.sleep(PAUSE_SECONDS)
            os.setsid()
            return become(json.loads(message), files)
        os.waitpid(between, 0)
        channel.send(b"\0")
        for file in files:
            os.close(file)
    os._exit(0)


async def _start(channel: socket.socket, words: Sequence[str], env: Mapping[str, str], limit: int) -> "ForkedChild":
    stdin, to_child = os.pipe()
    from_child, stdout = os.pipe()
    request = {"module": words[0], "words": words[1:], "cwd": str(Path.cwd()), "env": dict(env)}
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    socket.send_fds(channel, [json.dumps(request).encode()], [stdin, stdout, 2])
    (pid,) = struct.unpack("<i", channel.recv(4))
    channel.recv(1)  # the process in between has ended, and the child is ours
    _prctl(PR_SET_CHILD_SUBREAPER, 0)
    os.close(stdin)
    os.close(stdout)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(from_child, "rb", 0))
    protocol = asyncio.streams.FlowControlMixin()
    transport, _ = await loop.connect_write_pipe(lambda: protocol, os.fdopen(to_child, "wb", 0))
    return ForkedChild(pid, asyncio.StreamWriter(transport, protocol, None, loop), reader)


class ForkedChild:
    """The part of `asyncio.subprocess.Process` that a worker uses."""

    def __init__(self, pid: int, stdin: asyncio.StreamWriter, stdout: asyncio.StreamReader) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._ended = asyncio.Event()
        self._handle = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._handle, self._end)

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._handle)
        os.close(self._handle)
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._ended.set()

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode
