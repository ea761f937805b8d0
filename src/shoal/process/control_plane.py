"""The control plane in `shoal serve` and in workers. Only processes that use the control plane import this module,
because it imports gRPC."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from shoal.app import App
from shoal.base.errors import NotAllowed
from shoal.base.ids import NodeId
from shoal.base.parsing import Address, is_loopback
from shoal.base.settings import Settings
from shoal.fleet.control_client import ControlClient
from shoal.observe.logs import note
from shoal.queue.job import node_lane
from shoal.web.browser import has_browser
from shoal.work.node_agent import BrowserSource, NodeAgent, NodeRendering
from shoal.work.worker import Worker

EVERY_INTERFACE = ("", "0.0.0.0", "::")
DEPTH_COUNTED = 1000  # maximum number of private-lane jobs that a heartbeat counts


@asynccontextmanager
async def listening_for_nodes(app: App) -> AsyncIterator[Address]:
    """Serve the control plane while the block runs; yield the address."""
    listen = await _listen_address(app)
    server = app.fleet.control_server()
    address = await server.start(listen)
    note(f"The control plane is listening on {address}")
    try:
        yield address
    finally:
        await server.stop()


async def _listen_address(app: App) -> Address:
    """Return the address to listen on. Before a token exists, it is an address that other machines cannot reach."""
    listen = app.settings.grpc.listen
    if is_loopback(listen.host) or await app.access.tokens.any_made():
        if not is_loopback(listen.host) and app.settings.serve.tls_cert is None:
            note("Tokens of nodes are sent unencrypted: set SHOAL_TLS_CERT and SHOAL_TLS_KEY.")
        return listen
    if listen.host in EVERY_INTERFACE:
        note("There is no token yet, so the control plane listens only on the loopback interface.")
        return Address("127.0.0.1", listen.port)
    raise NotAllowed(
        f"listening for nodes on {listen.host} without a token would let everybody on the network register one",
        "create a token with `shoal tokens create --role admin --name NAME` on this store, or listen on 127.0.0.1",
    )


def rendering_of(settings: Settings) -> NodeRendering:
    """Return how a worker with these settings renders pages."""
    if not has_browser(settings.render):
        return NodeRendering()
    source = BrowserSource.SERVICE if settings.render.url else BrowserSource.LOCAL
    return NodeRendering(source, settings.crawl.max_concurrent_chrome)


class WorkerControl:
    """The connection of one worker to the control plane. `worker` returns the current worker, because a failed worker
    is replaced."""

    def __init__(self, app: App, worker: Callable[[], Worker]) -> None:
        settings, node_id = app.settings, NodeId(worker().node_id)
        agent = NodeAgent(
            worker,
            lambda: app.queue.depth_up_to(node_lane(node_id), DEPTH_COUNTED),
            settings.work,
            clock=app.clock,
            is_proxy_mode=bool(settings.egress.proxies),
            rendering=rendering_of(settings),
        )
        self._worker = worker
        self._client = ControlClient(node_id, agent, settings.grpc, app.clock, app.signals)
        agent.on_change = self._client.nudge

    def nudge(self) -> None:
        """Report the state of the worker now."""
        self._client.nudge()

    async def run(self, working: Awaitable[None]) -> None:
        """Keep a worker connected to its controller until the worker ends. If a different worker takes over the node
        id, stop this worker, and raise `NodeDisplaced` once it has returned its jobs."""
        connecting = asyncio.create_task(self._client.run())
        connecting.add_done_callback(self._on_ended)
        try:
            await working
        finally:
            self._client.close()
            [ended] = await asyncio.gather(connecting, return_exceptions=True)
        if isinstance(ended, Exception):
            raise ended

    def _on_ended(self, connecting: "asyncio.Task[None]") -> None:
        if not connecting.cancelled() and connecting.exception() is not None:
            self._worker().stop()
