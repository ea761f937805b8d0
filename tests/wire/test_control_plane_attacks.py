"""Attacks on the control plane: bytes that are not HTTP/2, broken frames, floods of pings. The connection is closed,
and the controller continues. And a process that forks while it has sessions."""

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.fleet.nodes import NodeRegistered
from tests.support.control_plane import PATIENCE, ControlPlane, control_plane
from tests.support.oldest_control_client import open_session, status

ROOT = Path(__file__).parents[2]
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, SETTINGS, PING, GOAWAY = 1, 4, 6, 7
ENHANCE_YOUR_CALM = 11


@pytest.fixture
async def plane(sqlite_url: str) -> AsyncIterator[ControlPlane]:
    async with control_plane(sqlite_url) as plane:
        yield plane


def frame(kind: int, payload: bytes = b"", stream: int = 0, flags: int = 0, length: int | None = None) -> bytes:
    size = len(payload) if length is None else length
    return size.to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


async def answer_to(plane: ControlPlane, sent: bytes) -> bytes:
    """Send bytes, and return all that comes back until the server closes the connection."""
    reader, writer = await asyncio.open_connection(*plane.address)
    found = b""
    try:
        async with asyncio.timeout(PATIENCE):
            writer.write(sent)
            while data := await reader.read(65536):
                found += data
    except ConnectionError:
        pass  # it was reset
    finally:
        writer.transport.abort()
    return found


async def still_serves(plane: ControlPlane) -> None:
    async with plane.channel() as channel:
        await open_session(channel).write(status("later"))
        await plane.until(lambda: bool(plane.of(NodeRegistered)) and plane.of(NodeRegistered)[-1].node_id == "later")


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        bytes(range(256)) * 64,
        PREFACE + frame(SETTINGS) + frame(SETTINGS, b"x"),
        PREFACE + frame(SETTINGS) + frame(PING, b"short"),
        PREFACE + frame(SETTINGS) + frame(HEADERS, b"\xff" * 64, stream=1, flags=4),
        PREFACE + frame(SETTINGS) + frame(0, b"", stream=0, length=0xFFFFFF) + bytes(1000),
    ],
    ids=["http/1", "tls", "noise", "bad settings", "bad ping", "bad headers", "16 MB frame"],
)
async def test_broken_frames_close_their_connection_and_nothing_else(plane: ControlPlane, sent: bytes) -> None:
    await answer_to(plane, sent)
    await still_serves(plane)


async def test_a_flood_of_pings_closes_the_connection(plane: ControlPlane) -> None:
    found = await answer_to(plane, PREFACE + frame(SETTINGS) + frame(PING, bytes(8)) * 10_000)
    goaway = found.index(bytes([GOAWAY, 0, 0, 0, 0, 0]))
    assert int.from_bytes(found[goaway + 10 : goaway + 14]) == ENHANCE_YOUR_CALM
    await still_serves(plane)


def test_programs_start_while_their_parent_has_a_session(tmp_path: Path) -> None:
    """With its own handlers, gRPC crashes about one of fifty forks of uvloop before its program begins."""
    code = f"""
    import shoal.fleet  # before gRPC, which reads the variables that it sets
    import asyncio, uvloop
    from tests.support.control_plane import connected, control_plane

    async def run():
        async with control_plane("sqlite:///{tmp_path}/shoal.db") as plane:
            async with connected(plane.address, GRPC_HEARTBEAT_INTERVAL="100ms"):
                for _ in range(50):
                    started = [asyncio.create_subprocess_exec("true", start_new_session=True) for _ in range(4)]
                    for process in await asyncio.gather(*started):
                        assert await process.wait() == 0, process.returncode

    uvloop.run(run())
    """
    words = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
