"""Real processes of Shoal, to start, kill, stop and start again: controllers, workers, and the workers' children.

Everything is ended with the fleet, and nothing may outlive it. The output of the processes goes to files, whose ends
are shown when the block around the fleet fails. The ledger checks their results.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from tests.support.forked_children import MARK, TEMPLATE, process_name
from tests.support.processes import start_module
from tests.support.servers import free_port
from tests.support.site import Site

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 120.0  # seconds to wait for what comes soon even on a busy machine; after that it is stuck
GONE_SECONDS = 60.0  # seconds until a killed process and its children have ended
ANSWER_SECONDS = 30.0
POLL_SECONDS = 0.02
LONGEST_POLL_SECONDS = 0.2
LOG_LINES = 25
LANES = "SHOAL_TEST_LANES"  # a Redis server, such as redis://127.0.0.1:6379, started with `--databases 10000`
DATABASES = 10_000
SEED = "SHOAL_TEST_SEED"
USUAL_SEED = 5
OURS = ("DATABASE_URL", "REDIS_URL", "RENDERER_URL", "WORKER_", "MAX_CONCURRENT_", "GRPC_", "SHOAL_", "XDG_")
# Short polling intervals with normal leases, for tests in which nothing may depend on an expired lease.
QUICK = {"SHOAL_LEASE_SWEEP": "200ms", "SHOAL_QUEUE_POLL": "200ms", "SHOAL_COMMIT_RESULTS": "10"}
# All lease times at a tenth, so that twenty kills fit into a test. On a busy machine a lease may expire without a
# fault.
TENTH = QUICK | {"SHOAL_LEASE": "1s", "SHOAL_LEASE_EXTEND": "300ms"}
# Leases so long that none expires, even on a busy machine.
LONG_LEASE = {"SHOAL_LEASE": "10m", "SHOAL_LEASE_EXTEND": "1m"}
# For a test that counts how leases ended.
FIFTH = QUICK | {"SHOAL_LEASE": "2s", "SHOAL_LEASE_EXTEND": "300ms"}


class Shoal:
    """One command of ours as a process; it can be started again under the same name."""

    def __init__(self, name: str, words: list[str], env: dict[str, str], folder: Path, module: str = "shoal") -> None:
        self.name = name
        self._module = module
        self.log = folder / f"{name}.log"
        self._words = words
        self._env = env
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        with self.log.open("ab") as log:
            self._process = start_module(
                self._module,
                *self._words,
                cwd=self._folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None
        return self._process

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def children(self) -> list[int]:
        return children_of(self.process.pid)

    def send(self, sign: signal.Signals) -> None:
        self.process.send_signal(sign)

    def family(self) -> list[int]:
        """The process and its children, which are in sessions of their own."""
        return [self.process.pid, *self.children()]

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        """The exit code."""
        return self.process.wait(seconds)

    def kill(self) -> None:
        """Send SIGKILL; return when the process and its children have ended."""
        children = [identity(pid) for pid in self.children()]
        self.process.kill()
        self.process.wait(GONE_SECONDS)
        wait_for(lambda: not any(map(is_alive, children)), f"the end of the children of {self.name}", GONE_SECONDS)

    def kill_child(self) -> None:
        """Kill one child with SIGKILL; wait a moment if the process has none yet."""
        wait_for(lambda: bool(self.children()), f"a child of {self.name}")
        send_all(self.children()[:1], signal.SIGKILL)

    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


class Fleet:
    """A controller and workers on one store. Use it as a context: nothing outlives the block."""

    def __init__(self, folder: Path, store_url: str, **env: str) -> None:
        self.folder = folder
        self.store_url = store_url
        self._mark = secrets.token_hex(8)
        self._env = clean_environment(folder) | {
            "DATABASE_URL": store_url,
            "SHOAL_ALLOW_NETWORKS": "127.0.0.0/8",
            MARK: self._mark,
            **lanes_of_run(),
            **env,
        }
        self._members: list[Shoal] = []
        self._port = free_port()

    @property
    def port(self) -> int:
        """Return the port on which the controller listens."""
        return self._port

    def controller(self, workers: int = 0) -> Shoal:
        words = ["serve", "--listen", f"127.0.0.1:{self._port}", "--workers", str(workers)]
        member = self._add("controller", words)
        self.wait_ready()
        return member

    def worker(self, name: str = "worker-1", **env: str) -> Shoal:
        return self._add(name, ["worker"], GRPC_NODE_ID=name, **env)

    def page_worker(self, name: str = "worker-1", **env: str) -> Shoal:
        """A worker whose page jobs do what their payload says: see `page_child`."""
        return self._add(name, [], "tests.support.page_worker", GRPC_NODE_ID=name, PYTHONPATH=str(ROOT), **env)

    def command(self, name: str, *words: str) -> Shoal:
        """Any other command, under a name of its own."""
        return self._add(name, list(words))

    def wait_ready(self) -> None:
        wait_for(lambda: self._ask("/readyz") is not None, "a controller that is ready")

    def submit(self, site: Site, **options: Any) -> str:
        """Crawl the whole site; return the id of the crawl."""
        config = {"seeds": [site.address], "depth": 50, "speed": "max", "concurrency": 8, **options}
        answer = self._ask("/api/v1/crawls", json.dumps(config).encode())
        assert answer is not None, "the controller did not answer"
        return str(answer["id"])

    def get(self, path: str) -> dict[str, Any]:
        answer = self._ask(path)
        assert answer is not None, f"the controller did not answer {path}"
        return answer

    def post(self, path: str, **values: Any) -> dict[str, Any]:
        answer = self._ask(path, json.dumps(values).encode())
        assert answer is not None, f"the controller did not take {path}"
        return answer

    def try_post(self, path: str, **values: Any) -> dict[str, Any] | None:
        """Send it; None if the controller did not take it."""
        return self._ask(path, json.dumps(values).encode())

    def limit(self, scope: str, most: int) -> None:
        """Set the quota of a quota key."""
        answer = self._ask(f"/api/v1/quotas/{scope}", json.dumps({"most": most}).encode(), method="PUT")
        assert answer is not None, f"the controller did not limit {scope}"

    def fetch(self, urls: Iterable[str], **options: Any) -> str:
        """Create a page job for each URL; return the id of their group."""
        return str(self.post("/api/v1/jobs", urls=list(urls), **options)["id"])

    def group(self, group_id: str) -> dict[str, Any]:
        answer = self._ask(f"/api/v1/groups/{group_id}")
        return answer if answer is not None else {"state": "unknown"}

    def crawl(self, crawl_id: str) -> dict[str, Any]:
        answer = self._ask(f"/api/v1/crawls/{crawl_id}")
        return answer if answer is not None else {"state": "unknown"}

    def ask_for(self, crawl_id: str, verb: str) -> int | None:
        """Request an action on a crawl; return the status of the response, or None if no controller answered."""
        request = Request(f"http://127.0.0.1:{self._port}/api/v1/crawls/{crawl_id}/{verb}", b"{}", method="POST")
        request.add_header("Content-Type", "application/json")
        try:
            with urlopen(request, timeout=ANSWER_SECONDS) as response:
                return int(response.status)
        except HTTPError as error:
            return error.code if error.code < 500 else None
        except (URLError, OSError):
            return None

    def wait_for_state(self, crawl_id: str, *states: str, seconds: float = PATIENCE_SECONDS) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def reached() -> bool:
            found.update(self.crawl(crawl_id))
            return found["state"] in states

        wait_for(reached, f"a crawl that is {' or '.join(states)}", seconds, lambda: f"it is {found}")
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self._members:
            if member.alive:
                send_all(member.family(), signal.SIGCONT)
                member.process.kill()
                member.process.wait(GONE_SECONDS)
        orphans = self._orphans()
        if error is not None:
            error.add_note(self._logs())
        elif orphans:
            raise AssertionError(f"processes outlived their parents: {orphans}\n{self._logs()}")

    def _add(self, name: str, words: list[str], module: str = "shoal", **env: str) -> Shoal:
        member = Shoal(name, words, self._env | env, self.folder, module).start()
        self._members.append(member)
        return member

    def metrics(self) -> str:
        with urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=ANSWER_SECONDS) as response:
            return str(response.read(), "utf-8")

    def _ask(self, path: str, body: bytes | None = None, method: str | None = None) -> dict[str, Any] | None:
        kind = {"Content-Type": "application/json"}
        request = Request(f"http://127.0.0.1:{self._port}{path}", body, kind, method=method)
        try:
            with urlopen(request, timeout=ANSWER_SECONDS) as response:
                found: dict[str, Any] = json.load(response)
                return found
        except (URLError, OSError, ValueError):
            return None

    def _orphans(self) -> list[int]:
        """End the processes of this fleet that still run, and return them."""
        with contextlib.suppress(AssertionError):
            wait_for(lambda: not marked(self._mark), "the end of the fleet", GONE_SECONDS)
        left = marked(self._mark)
        send_all(left, signal.SIGKILL)
        return left

    def _logs(self) -> str:
        ends = {member.name: member.said().splitlines()[-LOG_LINES:] for member in self._members}
        return "\n".join(f"--- {name}\n" + "\n".join(lines) for name, lines in ends.items())


def seed_of_run() -> int:
    """Return the seed of this run: a fixed one, unless the environment sets another."""
    return int(os.environ.get(SEED) or USUAL_SEED)


def send_all(pids: Iterable[int], sign: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sign)


def stop_for(pids: Iterable[int], seconds: float) -> None:
    """Stop processes for some time with SIGSTOP, as a machine that swaps does, and let them go on."""
    stopped = list(pids)
    send_all(stopped, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        send_all(stopped, signal.SIGCONT)


def lanes_of_run() -> dict[str, str]:
    """Return the setting that puts lanes on the Redis server of SHOAL_TEST_LANES, in a database of their own."""
    server = os.environ.get(LANES)
    return {"REDIS_URL": f"{server}/{secrets.randbelow(DATABASES)}", "SHOAL_LANES": "redis"} if server else {}


def clean_environment(folder: Path) -> dict[str, str]:
    """Return the environment without any setting of Shoal, and with this folder as home."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return kept | {"HOME": str(folder), "PYTHONUNBUFFERED": "1"}


def wait_for(
    condition: Callable[[], bool],
    what: str,
    seconds: float = PATIENCE_SECONDS,
    seen: Callable[[], str] = lambda: "",
    longest_poll: float = LONGEST_POLL_SECONDS,
) -> None:
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        if waited > seconds:
            raise AssertionError(f"there was not {what} within {seconds:g} s {seen()}")
        # Polling takes CPU time from the processes that are waited for, so poll less often the longer a poll takes.
        time.sleep(min(longest_poll, max(POLL_SECONDS, waited / 10)))


def children_of(pid: int) -> list[int]:
    """The living children of a process, as the kernel sees them."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(word) for word in task.read_text().split()]
    return [child for child in found if is_alive(identity(child)) and name_of(child) != TEMPLATE]


def identity(pid: int) -> tuple[int, str]:
    """A pid and the start time of that process, because a pid may be reused."""
    fields = _stat(pid)
    return pid, fields[19] if fields else ""


def is_alive(who: tuple[int, str]) -> bool:
    fields = _stat(who[0])
    return bool(fields) and fields[0] != "Z" and fields[19] == who[1]


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
    except OSError:
        return ""


def marked(mark: str) -> list[int]:
    """Living processes with this mark in their environment, or forked ones with this mark in their name."""
    wanted, name = f"{MARK}={mark}".encode(), process_name(mark, [])
    found = [pid for pid in _pids() if wanted in _environment(pid) or name_of(pid).startswith(name)]
    return [pid for pid in found if is_alive(identity(pid))]


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
