"""Fleets of real processes with a control plane: one or two controllers, and workers that report to them through
proxies that a test can cut."""

import asyncio
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from shoal.base.parsing import Address
from tests.support.control_plane import CuttableProxy
from tests.support.fleet import QUICK, Fleet, Shoal, wait_for
from tests.support.server_threads import serve_to_the_end
from tests.support.servers import free_port

START_SECONDS = 30.0


def control_plane(**more: str) -> dict[str, str]:
    """Return the settings of a fleet whose workers report to its controller."""
    address = f"127.0.0.1:{free_port()}"
    return {
        **QUICK,
        "GRPC_ENABLED": "true",
        "GRPC_LISTEN_ADDR": address,
        "GRPC_ANALYZER_ADDR": address,
        "GRPC_HEARTBEAT_INTERVAL": "300ms",
        "GRPC_RECONNECT_BACKOFF": "100ms",
        "GRPC_MAX_RECONNECT_BACKOFF": "500ms",
        "SHOAL_LOG_FORMAT": "json",
        **more,
    }


def node(fleet: Fleet, node_id: str) -> dict[str, Any]:
    """Return a node as the API shows it; empty if it is not there."""
    found: dict[str, dict[str, Any]] = {one["id"]: one for one in fleet.get("/api/v1/nodes")["items"]}
    return found.get(node_id, {})


def wait_for_node(fleet: Fleet, node_id: str, **facts: Any) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    def is_so() -> bool:
        seen.clear()
        seen.update(node(fleet, node_id))
        return all(seen.get(name) == value for name, value in facts.items()) and bool(seen)

    wait_for(is_so, f"{node_id} with {facts}", seen=lambda: f"it is {seen}")
    return seen


def command(fleet: Fleet, node_id: str, name: str, result: str = "applied", **values: Any) -> None:
    """Give a command and wait until the node has acknowledged it."""
    path = f"/api/v1/nodes/{node_id}/commands"
    given = fleet.post(path, command=name, **values)
    wait_for(lambda: fleet.get(f"{path}/{given['id']}")["state"] == result, f"{name} that is {result}")


class ThreadedProxy:
    """A `CuttableProxy` in a thread of its own, for processes: it can be cut so that both ends stay open, and its
    connections can be reset."""

    def __init__(self, target: Address) -> None:
        self._proxy = CuttableProxy(target)
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=lambda: serve_to_the_end(self._listen()), name="proxy", daemon=True)
        self.address = ""

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(START_SECONDS), "the proxy does not listen"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(self._over.set)
        self._thread.join(START_SECONDS)

    def lead_to(self, target: Address) -> None:
        """Forward new connections to another address."""
        self._call(lambda: self._proxy.lead_to(target))

    def cut(self) -> None:
        """Forward nothing more, without closing either end."""
        self._call(self._proxy.cut)

    def mend(self) -> None:
        """Forward again. Existing connections are reset."""
        self._call(self._proxy.mend)

    def reset(self) -> None:
        """Reset all connections; new ones are forwarded."""
        self._call(self._proxy.reset)

    def _call(self, what: Any) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(what)

    async def _listen(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with self._proxy.listening() as address:
            self.address = str(address)
            self._ready.set()
            await self._over.wait()


class TwoControllers(Fleet):
    """Two controllers and two workers on one store; each worker reports to the controller of its number, through a
    proxy. Requests go to the first controller unless `ask` names the other."""

    def __init__(self, folder: Path, store_url: str, **env: str) -> None:
        super().__init__(folder, store_url, **(control_plane() | env))
        self._http = [self._port, free_port()]
        self._grpc = [Address("127.0.0.1", free_port()) for _ in self._http]
        self.proxies = [ThreadedProxy(address) for address in self._grpc]
        self.controllers: list[Shoal] = []
        self.workers: list[Shoal] = []

    def ask(self, number: int) -> None:
        """Send requests to this controller from now on: 0 or 1."""
        self._port = self._http[number]

    def move_proxy(self, number: int, controller: int) -> None:
        """Let a worker find another controller when it connects again."""
        self.proxies[number].lead_to(self._grpc[controller])

    def start(self) -> None:
        """Start everything, and wait until both controllers see both nodes."""
        for place, (port, address) in enumerate(zip(self._http, self._grpc, strict=True)):
            words = ["serve", "--listen", f"127.0.0.1:{port}", "--workers", "0"]
            name = f"controller-{place + 1}"
            self.controllers.append(self._add(name, words, GRPC_LISTEN_ADDR=str(address), GRPC_NODE_ID=name))
        for place, proxy in enumerate(self.proxies):
            self.ask(place)
            self.wait_ready()
            name = f"worker-{place + 1}"
            self.workers.append(
                self._add(name, ["worker"], GRPC_NODE_ID=name, GRPC_ANALYZER_ADDR=proxy.__enter__().address)
            )
        for place in (1, 0):
            self.ask(place)
            wait_for(lambda: "shoal_grpc_connected_nodes 2.0" in self.metrics(), "two nodes to dispatch to")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            for proxy in self.proxies:
                if proxy.address:
                    proxy.__exit__(None, None, None)
