"""Real servers for tests, benchmarks and chaos: started on free ports, shared by a run, never left behind.

One `Servers` per run owns a temporary folder. The first process that needs a shared server starts it there, under a
file lock, and every process of the run uses the same one. A test that stops or kills a server takes one of its own with
`new_postgres` or `new_redis`. Finding binaries is programs.py, stopping all is guard.py.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from io import BufferedRWPair
from itertools import count
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import asyncpg

from tests.support import server_guard
from tests.support.programs import (
    Identity,
    Program,
    ServerUnavailable,
    find_chromium,
    find_postgres,
    find_redis,
    reachable,
    unprivileged,
)
from tests.support.redis_versions import SOURCES, find_redis_version

# Each names a server by its URL, or binaries by their path, or is `wheel`, or for Redis a version (6.2, 7).
POSTGRES = "SHOAL_TEST_POSTGRES"
REDIS = "SHOAL_TEST_REDIS"
DEADLINE_SECONDS = 120.0
POLL_SECONDS = 0.02
DATABASES = 15  # of a Redis server, without the first
FIRST_PORT, PORTS = 20_000, 12_000
CLUSTER_BUS = 10_000  # the distance of a Redis node's second port
# A shared server refuses what would be felt by the tests of other workers.
USER = ["--user", "default", "on", "nopass", "~*", "&*", "+@all"]
SHARED = [*USER, "-flushall", "-shutdown", "-client", "-config", "+config|get", "-script", "+script|load"]
_places: dict[int, Iterator[int]] = {}  # for each process: the next port to try
# Most databases sort text by the rules of a language, unlike SQLite, which compares bytes.
SORTED = "CREATE DATABASE sorted TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'"
# Tests connect thousands of times; proving to know a password takes a third of what that costs. Every other database of
# the server asks for it.
NO_PASSWORD = "host sorted all 127.0.0.1/32 trust\n"


@dataclass(frozen=True)
class Service:
    """A server as the tests use it and as the closing lines name it."""

    name: str
    version: str
    origin: str
    url: str

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.origin})"


def wait_until(condition: Callable[[], bool], what: str, seconds: float = DEADLINE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise ServerUnavailable(f"{what} did not happen within {seconds:.0f} s")
        time.sleep(POLL_SECONDS)


def free_port(further: int = 0) -> int:
    """Return a free port below the ephemeral range, so that no outgoing connection takes it before it is used, or used
    again. A process asks for one after the other, so that two servers hardly get the same one. `further`: the distance
    to a second port that is free as well."""
    places = _places.setdefault(os.getpid(), count(secrets.randbelow(PORTS)))
    while True:
        port = FIRST_PORT + next(places) % (PORTS - further)
        with socket.socket() as probe, socket.socket() as second, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if further:
                second.bind(("127.0.0.1", port + further))
            return port


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def end_of(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-8:]) if log.exists() else "no log"


class PostgresServer:
    """One PostgreSQL of ours: data folder, port and password stay the same over any number of restarts."""

    def __init__(self, program: Program, folder: Path, *, durable: bool = False) -> None:
        self.program = program
        self.folder = folder
        self.port = 0
        self._password = secrets.token_hex(8)
        self._identity = unprivileged()
        self._data = folder / "data"
        self._log = folder / "log"
        self._initialise(durable)

    @property
    def url(self) -> str:
        return f"postgresql://shoal:{self._password}@127.0.0.1:{self.port}/postgres"

    @property
    def service(self) -> Service:
        return Service("PostgreSQL", postgres_version(self.url), self.program.origin, self.url)

    @property
    def log(self) -> str:
        """Return its complete output."""
        return self._log.read_text(errors="replace")

    def start(self) -> None:
        """Ready for connections when this returns. Backends of a killed server may delay it for a moment."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while self._control("start", "-l", str(self._log)).returncode != 0:
            if "shared memory block" not in end_of(self._log) or time.monotonic() > deadline:
                raise ServerUnavailable(f"PostgreSQL did not start on port {self.port}:\n{end_of(self._log)}")
            time.sleep(POLL_SECONDS)

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        done = self._control("stop", "-m", mode)
        if done.returncode != 0 and self._pid() is not None:
            raise ServerUnavailable(f"PostgreSQL did not stop: {done.stdout}")

    def kill(self) -> None:
        """SIGKILL to the postmaster, as the kernel does when memory is short."""
        pid = self._pid()
        if pid is None:
            return
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not answers(self.port), "the end of a killed PostgreSQL")
        # The dead process may stay a zombie where nobody reaps it, and would look alive to the next start.
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def restart(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        self.stop(mode)
        self.start()

    def _initialise(self, durable: bool) -> None:
        self._identity.own(self.folder)
        secret = self.folder / "password"
        secret.write_text(self._password)
        self._identity.own(secret)
        command = ["-D", str(self._data), "-U", "shoal", "-A", "scram-sha-256", f"--pwfile={secret}"]
        done = self._run("initdb", *command, "-E", "UTF8", "--locale=C", "--no-sync")
        if done.returncode != 0:
            raise ServerUnavailable(f"{self.program.beside('initdb')} failed:\n{done.stdout}")
        secret.unlink()
        rules = self._data / "pg_hba.conf"  # the first that fits counts
        rules.write_text(NO_PASSWORD + rules.read_text())
        self.port = free_port()
        with (self._data / "postgresql.auto.conf").open("a") as settings:
            settings.writelines(f"{key} = '{value}'\n" for key, value in self._settings(durable).items())
        stop = [self.program.beside("pg_ctl"), "-D", str(self._data), "-m", "immediate", "stop"]
        note_how_to_stop(self.folder, stop, self._identity)

    def _settings(self, durable: bool) -> dict[str, object]:
        """`synchronous_commit` stays on: a killed server that lost a commit would mislead the tests."""
        lasting = "on" if durable else "off"
        return {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": 200,
            "shared_buffers": "64MB",
            "fsync": lasting,
            "full_page_writes": lasting,
            "autovacuum": "off",  # no test runs long enough for it to matter, and plans would depend on timing
        }

    def _pid(self) -> int | None:
        try:
            return int((self._data / "postmaster.pid").read_text().split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return None

    def _control(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._run("pg_ctl", "-D", str(self._data), "-w", "-t", "100", *arguments)

    def _run(self, binary: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._identity.run([self.program.beside(binary), *arguments], self.folder)


class RedisServer:
    """A Redis or Valkey server started by the tests. Nothing is persisted unless `durable`, and nothing is ever
    evicted."""

    def __init__(self, program: Program, folder: Path, *, durable: bool = False, options: Sequence[str] = ()) -> None:
        self.program = program
        self.folder = folder
        self.port = free_port(CLUSTER_BUS if "--cluster-enabled" in options else 0)
        self._identity = unprivileged()
        self._identity.own(folder)
        self._durable = durable
        self._further_options = options
        self._pidfile = folder / "pid"
        note_how_to_stop(folder, ["sh", "-c", 'kill -9 "$(cat pid)"'], self._identity)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def service(self) -> Service:
        name, version = redis_version(self.url)
        return Service(name, version, self.program.origin, self.url)

    def start(self) -> None:
        self.launch()
        try:
            wait_until(self._is_ready, "the start of Redis")
        except ServerUnavailable as error:
            raise ServerUnavailable(f"{error}:\n{end_of(self.folder / 'log')}") from error

    def launch(self) -> None:
        """Start it without waiting until it has loaded its data."""
        self._identity.run([str(self.program.path), *self._options()], self.folder)

    def watch_by_sentinel(self, primary: "RedisServer", name: str) -> None:
        """Become a sentinel of a primary. Call it instead of `start`, on a server that was stopped."""
        config = self.folder / "sentinel.conf"
        watched = f"monitor {name} 127.0.0.1 {primary.port} 1", f"down-after-milliseconds {name} 500"
        config.write_text("".join(f"sentinel {line}\n" for line in (*watched, f"failover-timeout {name} 3000")))
        self._identity.own(config)
        network = ["--bind", "127.0.0.1", "--port", str(self.port), "--daemonize", "yes"]
        files = ["--dir", str(self.folder), "--pidfile", str(self._pidfile), "--logfile", "log"]
        self._identity.run([str(self.program.path), str(config), "--sentinel", *network, *files], self.folder)
        wait_until(lambda: answers(self.port), "the start of a sentinel")

    def stop(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def _options(self) -> list[str]:
        persistence = ["--appendonly", "yes"] if self._durable else ["--appendonly", "no", "--save", ""]
        files = ["--dir", str(self.folder), "--pidfile", str(self._pidfile), "--logfile", "log"]
        network = ["--bind", "127.0.0.1", "--port", str(self.port)]
        usual = [*network, *files, *persistence, "--daemonize", "yes", "--maxmemory-policy", "noeviction"]
        return [*usual, *self._further_options]

    def _is_ready(self) -> bool:
        try:
            return ask_redis(self.url, "PING") == "PONG"
        except OSError:
            return False

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int(self._pidfile.read_text()), number)
            wait_until(lambda: not answers(self.port), "the end of Redis")
            self._pidfile.unlink(missing_ok=True)


def note_how_to_stop(folder: Path, command: list[str], identity: Identity) -> None:
    (folder / server_guard.STOP).write_text(json.dumps({"command": command, **asdict(identity)}))


class Servers:
    """All servers of one run. `open` begins a run; other processes of it join with its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._guard: subprocess.Popen[bytes] | None = None

    @classmethod
    def open(cls) -> "Servers":
        servers = cls(Path(tempfile.mkdtemp(prefix="shoal-run-")).resolve())
        servers.folder.chmod(0o755)
        # A session of its own, so that Ctrl-C on the terminal reaches the test run and not the process that cleans up.
        servers._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", server_guard.__file__, str(servers.folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        return servers

    def close(self) -> None:
        """Return when every server has stopped and the folder is gone."""
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.close()
            self._guard.wait(3 * server_guard.STOP_DEADLINE_SECONDS)
            self._guard = None

    def __enter__(self) -> "Servers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def used(self) -> list[Service]:
        return [Service(**json.loads(note.read_text())) for note in sorted(self.folder.glob("*.json"))]

    def postgres(self) -> Service:
        return self._shared("postgres", self._start_postgres)

    def redis(self, version: str = "") -> Service:
        """`version`: one of `redis_versions`, or the usual server."""
        if version:
            return self._shared(f"redis-{version}", lambda: self.new_redis(version=version, options=SHARED).service)
        return self._shared("redis", self._start_redis)

    def chromium(self) -> Service:
        """`url` is the path of the binary."""
        return self._shared("chromium", describe_chromium)

    def new_postgres(self, *, durable: bool = False) -> PostgresServer:
        """A started server for one test alone, that may be stopped and killed. Stop it when done."""
        program = self._program(find_postgres, POSTGRES)
        server = PostgresServer(program, self._new_folder("postgres"), durable=durable)
        server.start()
        return server

    def new_redis(self, *, version: str = "", durable: bool = False, options: Sequence[str] = ()) -> RedisServer:
        """A started server for one test alone, that may be stopped and killed. Stop it when done."""
        program = self._redis_program(version)
        server = RedisServer(program, self._new_folder("redis"), durable=durable, options=options)
        server.start()
        return server

    def _program(self, find: Callable[[str], Program], variable: str) -> Program:
        wish = os.environ.get(variable, "")
        with self._locked("programs"):
            return reachable(find("" if "://" in wish else wish), self.folder)

    def _redis_program(self, version: str) -> Program:
        return self._program(lambda wish: find_any_redis(version or wish), REDIS)

    def _start_postgres(self) -> Service:
        url = os.environ.get(POSTGRES, "")
        if "://" in url:
            return Service("PostgreSQL", postgres_version(url), f"named by {POSTGRES}", url)
        service = self.new_postgres().service
        try:
            ask_postgres(service.url, SORTED)
        except asyncpg.PostgresError:  # this one was built without languages
            return service
        return replace(service, url=urlsplit(service.url)._replace(path="/sorted").geturl())

    def _start_redis(self) -> Service:
        url = os.environ.get(REDIS, "")
        if "://" in url:
            name, version = redis_version(url)
            return Service(name, version, f"named by {REDIS}", url)
        return self.new_redis(options=SHARED).service

    def _shared(self, kind: str, start: Callable[[], Service]) -> Service:
        note = self.folder / f"{kind}.json"
        with self._locked(kind):
            if not note.exists():
                note.write_text(json.dumps(asdict(start())))
            return Service(**json.loads(note.read_text()))

    @contextlib.contextmanager
    def _locked(self, kind: str) -> Iterator[None]:
        with (self.folder / f"{kind}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _new_folder(self, kind: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=self.folder))


def find_any_redis(wish: str) -> Program:
    return find_redis_version(wish) if wish in SOURCES else find_redis(wish)


def describe_chromium() -> Service:
    program = find_chromium()
    command = [str(program.path), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
    version = re.search(r"\d[\d.]+", done.stdout)
    if version is None:
        raise ServerUnavailable(f"{program.path} does not start: {done.stderr.strip()}")
    return Service("Chromium", version[0], program.origin, str(program.path))


def postgres_version(url: str) -> str:
    try:
        return str(ask_postgres(url, "SHOW server_version")).split(" ")[0]
    except (OSError, asyncpg.PostgresError) as error:
        raise ServerUnavailable(f"PostgreSQL does not answer ({error}): check {POSTGRES}") from error


def ask_postgres(url: str, *statements: str) -> object:
    """Run statements on a separate connection; return the value of the last one."""

    async def ask() -> object:
        connection = await asyncpg.connect(url, timeout=60)
        try:
            return [await connection.fetchval(statement) for statement in statements][-1]
        finally:
            await connection.close()

    # A thread with a loop of its own: the loop of the test, if it has one, stays untouched.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, ask()).result()


def redis_version(url: str) -> tuple[str, str]:
    try:
        answer = ask_redis(url, "INFO", "server")
    except OSError as error:
        raise ServerUnavailable(f"Redis does not answer ({error}): check {REDIS}") from error
    facts = dict(line.split(":", 1) for line in answer.splitlines() if ":" in line)
    if "valkey_version" in facts:
        return "Valkey", facts["valkey_version"]
    return "Redis", facts["redis_version"]


def ask_redis(url: str, *words: str) -> str:
    """One command on a connection of its own, answers of one line or one text only."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port or 6379), timeout=60) as connection:
        stream = connection.makefile("rwb")
        if address.password:
            send_redis(stream, "AUTH", address.password)
        if address.path.strip("/"):
            send_redis(stream, "SELECT", address.path.strip("/"))
        return send_redis(stream, *words)


@contextlib.contextmanager
def redis_database(redis: Service) -> Iterator[str]:
    """Lend an empty database of a shared server: each worker has its own, and runs one test at a time."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    url = f"{redis.url.rsplit('/', 1)[0]}/{int(worker.removeprefix('gw')) % DATABASES + 1}"
    ask_redis(url, "FLUSHDB")
    yield url
    ask_redis(url, "FLUSHDB")


def send_redis(stream: BufferedRWPair, *words: str) -> str:
    parts = [word.encode() for word in words]
    stream.write(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
    stream.flush()
    kind, answer = (line := stream.readline())[:1], line[1:].strip().decode()
    if kind == b"-":
        raise ConnectionError(answer)
    if kind != b"$" or answer == "-1":
        return answer
    return stream.read(int(answer) + 2)[:-2].decode()
