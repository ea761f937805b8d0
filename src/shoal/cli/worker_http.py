"""The HTTP endpoints of a worker, if an address is set: `/healthz`, `/readyz` and `/metrics`, as on a controller."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

from shoal.access.auth_throttle import AuthThrottle
from shoal.app import App
from shoal.base.parsing import Address
from shoal.cli.listen import address_of, check_exposure, config_of, open_socket
from shoal.cli.output import note
from shoal.observe.metrics import Metrics
from shoal.serve.application import application
from shoal.serve.authentication import TokenAuthenticator
from shoal.serve.connections import BoundedServer, ConnectionLimits
from shoal.serve.endpoint import routes_of
from shoal.serve.health import HealthApi


class Server(BoundedServer):
    """A server that leaves signals to the worker."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def probed(
    app: App, metrics: Metrics, listen: Address, full_storage: Callable[[], Mapping[str, str]] = dict
) -> AsyncIterator[str]:
    """Serve while the block runs; yield the address. Access rules are those of a controller."""
    settings = app.settings.serve.but(listen=listen)
    await check_exposure(app, settings)
    listener = open_socket(listen, "SHOAL_WORKER_LISTEN")
    listener.listen()
    address = f"{'http' if settings.tls_cert is None else 'https'}://{address_of(listener)}"
    health = HealthApi(
        app.check_store,
        lambda: (metrics.render(), metrics.content_type),
        app.clock,
        lambda: app.wake.problem,
        full_storage,
    )
    authenticator = TokenAuthenticator(app.access.tokens, AuthThrottle(app.clock), settings, app.signals)
    routes = routes_of([health], settings.max_request_bytes)
    whole = application(routes, app.clock, app.signals, authenticator, open_probes=settings.open_probes)
    server = Server(config_of(whole, settings), ConnectionLimits(settings, app.clock, app.signals), settings)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    note(f"The worker serves /healthz, /readyz and /metrics on {address}")
    try:
        yield address
    finally:
        server.should_exit = True
        await serving
