"""Sessions of nodes: the cost of each session for a controller, with thousands of simulated nodes on one core."""

import asyncio
import os
import random
import resource
import struct
import sys
import tempfile
import time
from argparse import Namespace
from asyncio.subprocess import DEVNULL
from pathlib import Path
from urllib.request import urlopen

from hpack import Encoder

from bench.process import TICK, cores, pinned
from bench.report import Report
from shoal.base.ids import NodeId
from shoal.fleet.messages import StatusUpdate, status_message
from shoal.fleet.node import NodeStatus
from shoal.fleet.sessions import HEARTBEATS_PER_SECOND
from tests.support.servers import free_port

SIZES, SHORT_SIZES = (2_000, 10_000), (500,)
OWN_INTERVAL = 10.0  # seconds: the default of GRPC_HEARTBEAT_INTERVAL
MEASURED_SECONDS, SHORT_SECONDS = 20.0, 5.0
SETTLE_SECONDS = 5.0  # after the last registration
CONNECTING = 50  # nodes that connect at the same time
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING = 0, 1, 4, 6
ACK, END_HEADERS = 1, 4
STREAM = 1


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


class SimulatedNode(asyncio.Protocol):
    """One connection with one session. It implements only the necessary parts of HTTP/2, so that thousands of
    connections do not slow down the measured core."""

    def __init__(self, name: str, host: str) -> None:
        status = NodeStatus(max_concurrency=2, page_slots=15, instance=name, version="0", memory_bytes=1 << 28)
        body = status_message(StatusUpdate(node_id=NodeId(name), status=status)).SerializeToString()
        self._heartbeat = frame(DATA, 0, STREAM, b"\0" + struct.pack(">I", len(body)) + body)
        self._host = host
        self._buffer = b""
        self.registered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/control.CrawlerControl/Session"),
            (":authority", self._host),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ]
        begin = frame(HEADERS, END_HEADERS, STREAM, Encoder().encode(fields))
        transport.write(PREFACE + frame(SETTINGS, 0, 0, b"") + begin + self._heartbeat)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 9:
            size = int.from_bytes(self._buffer[:3])
            if len(self._buffer) < 9 + size:
                return
            kind, flags, payload = self._buffer[3], self._buffer[4], self._buffer[9 : 9 + size]
            self._buffer = self._buffer[9 + size :]
            if kind == SETTINGS and not flags & ACK:
                self._transport.write(frame(SETTINGS, ACK, 0, b""))
            elif kind == PING and not flags & ACK:
                self._transport.write(frame(PING, ACK, 0, payload))
            elif kind == DATA and not self.registered.done():
                self.registered.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.registered.done():
            self.registered.set_exception(error or ConnectionError("the controller closed the connection"))

    def send_heartbeat(self) -> None:
        self._transport.write(self._heartbeat)

    def close(self) -> None:
        self._transport.close()


def measure(options: Namespace, report: Report) -> None:
    """Measure a controller with its chores, on SQLite and on one core; the nodes are simulated on another."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    table = report.table(
        "sessions of simulated nodes on one controller",
        "nodes",
        "heartbeats/s",
        "CPU, % of a core",
        "CPU without nodes, %",
        "CPU per heartbeat, ms",
        "memory per session, KB",
        "registrations/s",
    )
    table.notes.append(
        "Each node has its own connection and reports every 10 s, or less often if the controller asks for that "
        "because there are many nodes. CPU is the time of the whole controller, including chores, the view of the "
        "fleet and storing the status of nodes."
    )
    for size in SHORT_SIZES if options.short else SIZES:
        table.rows.append(asyncio.run(_measured(size, SHORT_SECONDS if options.short else MEASURED_SECONDS)))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def _measured(size: int, seconds: float) -> list[str | int | float | None]:
    first, *others = cores()
    if others:
        os.sched_setaffinity(0, others)
    port, http = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "DATABASE_URL": f"sqlite:///{folder}/store.db",
            "HOME": folder,
            "GRPC_ENABLED": "true",
            "GRPC_LISTEN_ADDR": f"127.0.0.1:{port}",
            "SHOAL_GRPC_PEER_STREAMS": str(2 * size),
            "SHOAL_LOG_LEVEL": "warning",
        }
        command = [sys.executable, "-m", "shoal", "serve", "--listen", f"127.0.0.1:{http}"]
        controller = await asyncio.create_subprocess_exec(
            *pinned(command, [first]), env=environment, stdout=DEVNULL, stderr=DEVNULL
        )
        try:
            await _until_ready(http)
            return await _loaded(controller.pid, port, size, seconds)
        finally:
            controller.kill()
            await controller.wait()
            os.sched_setaffinity(0, [first, *others])


async def _loaded(pid: int, port: int, size: int, seconds: float) -> list[str | int | float | None]:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(2)
    cpu, memory = _cpu(pid), _memory(pid)
    await asyncio.sleep(seconds / 2)
    idle = (_cpu(pid) - cpu) / (seconds / 2)
    memory = max(memory, _memory(pid))
    nodes = [SimulatedNode(f"node-{number}", f"127.0.0.1:{port}") for number in range(size)]
    limit = asyncio.Semaphore(CONNECTING)

    async def connect(node: SimulatedNode) -> None:
        async with limit:
            await loop.create_connection(lambda: node, "127.0.0.1", port)
            await node.registered

    began = time.perf_counter()
    await asyncio.gather(*map(connect, nodes))
    registering = time.perf_counter() - began
    interval = max(OWN_INTERVAL, size / HEARTBEATS_PER_SECOND)
    sent = 0

    async def report(node: SimulatedNode) -> None:
        nonlocal sent
        await asyncio.sleep(random.uniform(0, interval))
        while True:
            node.send_heartbeat()
            sent += 1
            await asyncio.sleep(interval)

    reporting = [asyncio.create_task(report(node)) for node in nodes]
    await asyncio.sleep(SETTLE_SECONDS)
    cpu, at, before = _cpu(pid), time.perf_counter(), sent
    await asyncio.sleep(seconds)
    took = time.perf_counter() - at
    used, heartbeats, grown = _cpu(pid) - cpu, sent - before, _memory(pid) - memory
    for task in reporting:
        task.cancel()
    for node in nodes:
        node.close()
    per_heartbeat = max(0.0, used - idle * took) / heartbeats * 1000 if heartbeats else None
    return [
        size,
        heartbeats / took,
        100 * used / took,
        100 * idle,
        per_heartbeat,
        grown / size / 1024,
        size / registering,
    ]


async def _until_ready(http: int) -> None:
    def look() -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{http}/readyz", timeout=5) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    while not await asyncio.to_thread(look):  # noqa: ASYNC110
        await asyncio.sleep(0.1)


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK


def _memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
