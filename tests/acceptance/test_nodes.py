"""Controllers and workers with a control plane, as real processes: sessions, commands, restarts, and two workers with
one name."""

import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Self

import orjson
import pytest

from tests.support.control_fleet import command, control_plane, node, wait_for_node
from tests.support.fleet import LONG_LEASE, Fleet, Shoal, wait_for
from tests.support.http_client import HttpAnswer, request
from tests.support.site import Site

STRANGERS = 2_000
DESCRIPTORS = 1_024
REGISTERED_SECONDS = 5.0


def twin(fleet: Fleet, name: str, folder: Path) -> Shoal:
    """Start another worker with the same name, as if it were on another machine."""
    folder.mkdir()
    return fleet._add(f"{name}-twin", ["worker"], GRPC_NODE_ID=name, HOME=str(folder))


def test_workers_report_obey_and_come_back(store_url: str, tmp_path: Path) -> None:
    with (
        Fleet(tmp_path, store_url, **control_plane(SHOAL_CHROMIUM="missing")) as fleet,
        Site(pages=60, delay=0.02) as site,
    ):
        controller = fleet.controller()
        first, second = fleet.worker("worker-1"), fleet.worker("worker-2")
        for name in ("worker-1", "worker-2"):
            shown = wait_for_node(fleet, name, state="connected")
            assert shown["health_score"] > 0.9
            assert shown["memory_bytes"] > 20_000_000
        wait_for(lambda: "shoal_grpc_connected_nodes 2.0" in fleet.metrics(), "two nodes in the metrics")
        assert 'shoal_grpc_heartbeat_total{node_id="worker-1"}' in fleet.metrics()
        assert controller.said().count('"msg":"node registered"') == 2
        assert controller.said().count('"msg":"heartbeat received"') == 2

        command(fleet, "worker-1", "pause", reason="test")
        assert node(fleet, "worker-1")["wish"]["state"] == "paused"
        wait_for_node(fleet, "worker-1", state="paused")
        command(fleet, "worker-1", "restart_browser", "unsupported")
        command(fleet, "worker-2", "config_update", max_concurrency=5, rate_limit=20)
        wait_for_node(fleet, "worker-2", max_concurrency=5, rate_limit=20.0)

        site.allowed = 30
        crawl = fleet.submit(site)
        wait_for_node(fleet, "worker-2", active_tasks=1)
        assert node(fleet, "worker-1")["active_tasks"] == 0
        site.allowed = None
        done = fleet.wait_for_state(crawl, "completed")
        assert done["pages"] == 60
        began, ended = (datetime.fromisoformat(done[name]) for name in ("started_at", "finished_at"))
        assert (ended - began).total_seconds() > 2.5, "20 pages per second"
        wait_for_node(fleet, "worker-2", total_processed=1, success_rate=1.0)

        controller.kill()
        controller.start()
        fleet.wait_ready()
        wait_for_node(fleet, "worker-1", state="paused", session_epoch=2)  # the limits that operators set still apply
        wait_for_node(fleet, "worker-2", state="connected", session_epoch=2)
        command(fleet, "worker-1", "resume")

        site.delay = 0.5
        slow = fleet.submit(site)
        wait_for(lambda: any(one["active_tasks"] for one in fleet.get("/api/v1/nodes")["items"]), "a running crawl")
        [busy] = [one["id"] for one in fleet.get("/api/v1/nodes")["items"] if one["active_tasks"]]
        other = {"worker-1": "worker-2", "worker-2": "worker-1"}[busy]
        command(fleet, busy, "drain", reason="move")
        wait_for_node(fleet, busy, state="drained", active_tasks=0, health_score=0.0)
        wait_for_node(fleet, other, active_tasks=1)
        site.delay = 0
        assert fleet.wait_for_state(slow, "completed")["pages"] == 60

        twins = twin(fleet, "worker-1", tmp_path / "elsewhere")
        assert first.wait() == 4
        assert "another worker has registered" in first.said()
        wait_for_node(fleet, "worker-1", session_epoch=3, controller=node(fleet, "worker-2")["controller"])
        assert twins.alive
        assert 'shoal_grpc_stream_errors_total{node_id="worker-1",type="node_displaced"} 1.0' in fleet.metrics()

        second.send(signal.SIGTERM)
        assert second.wait() == 0
        assert node(fleet, "worker-2") == {}
        controller.send(signal.SIGTERM)
        assert controller.wait(60) == 0
        assert twins.alive


def test_a_worker_that_is_started_again_gets_its_own_work_back_at_once(sqlite_url: str, tmp_path: Path) -> None:
    with Fleet(tmp_path, sqlite_url, **control_plane(**LONG_LEASE)) as fleet, Site(pages=30) as site:
        site.allowed = 10
        fleet.controller()
        worker = fleet.worker("worker-1")
        wait_for_node(fleet, "worker-1", state="connected")
        crawl = fleet.submit(site)
        wait_for_node(fleet, "worker-1", active_tasks=1)
        worker.kill()
        worker.start()
        wait_for_node(fleet, "worker-1", active_tasks=1, session_epoch=2)  # its old lease would last ten minutes
        site.allowed = None
        assert fleet.wait_for_state(crawl, "completed")["pages"] == 30


def test_the_workers_of_a_controller_are_nodes_too(sqlite_url: str, tmp_path: Path) -> None:
    with Fleet(tmp_path, sqlite_url, **control_plane()) as fleet, Site(pages=5) as site:
        controller = fleet.controller(workers=2)
        wait_for(lambda: len(fleet.get("/api/v1/nodes")["items"]) == 2, "two nodes")
        names = [one["id"] for one in fleet.get("/api/v1/nodes")["items"]]
        fleet.post("/api/v1/nodes/commands", command="pause")
        for name in names:
            wait_for_node(fleet, name, state="paused")
        crawl = fleet.submit(site)
        fleet.post("/api/v1/nodes/commands", command="resume")
        assert fleet.wait_for_state(crawl, "completed")["pages"] == 5
        controller.send(signal.SIGTERM)
        assert controller.wait(60) == 0
        assert "Traceback" not in controller.said()


class FewDescriptors(Shoal):
    """A command that may open as many files as most systems allow by default. It is not forked: `select`, with which
    the test waits for a forked one, knows no more descriptors either."""

    def start(self) -> Self:
        shell = ["sh", "-c", f'ulimit -n {DESCRIPTORS} && exec "$@"', "sh"]
        words = [*shell, sys.executable, "-m", "shoal", *self._words]
        with self.log.open("ab") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            self._process = subprocess.Popen(words, cwd=self._folder, env=self._env, **streams)
        return self


@pytest.fixture
def many_sockets() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * STRANGERS:
        pytest.skip("this machine allows too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * STRANGERS), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.exhaustive
@pytest.mark.usefixtures("many_sockets")
@pytest.mark.parametrize(
    "first", [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"], ids=["silent", "settings"]
)
def test_two_thousand_idle_strangers_leave_room_for_a_node_with_a_token(
    sqlite_url: str, tmp_path: Path, first: bytes
) -> None:
    with Fleet(tmp_path, sqlite_url, **control_plane()) as fleet, ExitStack() as strangers:

        def start(name: str, *words: str, **env: str) -> Shoal:
            fleet._members.append(FewDescriptors(name, [*words], fleet._env | env, tmp_path).start())
            return fleet._members[-1]

        controller = start("controller", "serve", "--listen", f"127.0.0.1:{fleet.port}", "--workers", "0")
        fleet.wait_ready()
        admin = fleet.post("/api/v1/tokens", name="admin", role="admin")["token"]

        def ask(path: str, **body: str) -> HttpAnswer:
            shown = {"Authorization": f"Bearer {admin}"}
            return request(fleet.port, "POST" if body else "GET", path, orjson.dumps(body) if body else None, shown)

        token = ask("/api/v1/tokens", name="node", role="node", node_id="worker-1").json["token"]
        host, _, port = fleet._env["GRPC_LISTEN_ADDR"].rpartition(":")
        for _ in range(STRANGERS):
            stranger = strangers.enter_context(socket.create_connection((host, int(port)), timeout=30))
            stranger.send(first)
        assert ask("/healthz").status == 200
        worker = start("worker-1", "worker", GRPC_NODE_ID="worker-1", SHOAL_NODE_TOKEN=token)
        wait_for(lambda: "worker_started" in worker.said(), "a worker")
        wait_for(
            lambda: [one["id"] for one in ask("/api/v1/nodes").json["items"]] == ["worker-1"],
            "a node with a token",
            REGISTERED_SECONDS,
        )
        lines = [orjson.loads(line) for line in controller.said().splitlines() if line.startswith("{")]
        assert [line["event"] for line in lines if line["level"] != "info"] == ["connections_cut"]
