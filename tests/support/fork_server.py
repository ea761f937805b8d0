"""Forks processes of Shoal from one that has imported it: `python -m tests.support.fork_server FD`.

A request is one message on the socket FD: JSON, and the four file descriptors of the new process: its three standard
streams and a pipe for its exit status. The answer is its pid. The process is what `python -m MODULE` would be after its
imports: it has the arguments, environment, folder and streams of the request, no other file, and default signals. Its
name in the list of processes begins with the mark of its fleet and ends with its command or role: the kernel shows the
environment only of processes that were not forked.
"""

import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import sys
import time
from typing import Any

import shoal.cli
from tests.support.forked_children import MARK, fork_children, name_process, process_name

MOST_BYTES = 200_000
FILES = 4
FILE_LIMIT = 4096  # we open fewer
WITH_CHILDREN = {"serve", "worker", "--processes", "--workers"}  # words of commands that may have children


def serve(channel: socket.socket) -> tuple[str, list[str]]:
    """Fork a process for each request until there are no more. In a new process: its module and its arguments."""
    statuses: dict[int, int] = {}
    wake, woken = os.pipe()
    for end in (wake, woken):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    while True:
        ready, _, _ = select.select([channel.fileno(), wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            report_ended(statuses)
        if channel.fileno() not in ready:
            continue
        message, files, _, _ = socket.recv_fds(channel, MOST_BYTES, FILES)
        if not message:
            sys.exit()
        *streams, status = files
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            return become(json.loads(message), streams)
        statuses[pid] = status
        for stream in streams:
            os.close(stream)
        channel.send(struct.pack("<i", pid))


def report_ended(statuses: dict[int, int]) -> None:
    while statuses:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        pipe = statuses.pop(pid)
        os.write(pipe, struct.pack("<i", status))
        os.close(pipe)


def become(request: dict[str, Any], streams: list[int]) -> tuple[str, list[str]]:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, FILE_LIMIT)
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    paths = [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
    sys.path[:1] = [str(request["cwd"]), *paths]
    name_process(process_name(os.environ.get(MARK, "shoal"), request["words"]))
    return request["module"], request["words"]


def main(descriptor: str) -> None:
    for found in pkgutil.iter_modules(shoal.cli.__path__, "shoal.cli."):
        importlib.import_module(found.name)
    gc.freeze()  # keep memory pages shared with the forks
    module, words = serve(socket.socket(fileno=int(descriptor)))
    if module != "shoal" or WITH_CHILDREN.intersection(words):
        module, words = fork_children(become) or (module, words)
    sys.argv = [module, *words]
    if module != "shoal":
        sys.modules.pop(module, None)  # it is executed once more, as the main module
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])
