"""HTTP serving in a process: the listening socket, the exposure check, the server configuration, and the health
endpoints of a worker. All other applications come from the caller."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.types import ASGIApp

from shoal.access.limits import AuthThrottle, ConnectionLimits
from shoal.app import App
from shoal.base.errors import BackendUnavailable, NotAllowed
from shoal.base.parsing import Address, is_loopback
from shoal.base.settings import ServeSettings
from shoal.observe.logs import note
from shoal.observe.metrics import Metrics
from shoal.serve.application import application
from shoal.serve.authentication import TokenAuthenticator
from shoal.serve.connections import BoundedServer
from shoal.serve.endpoint import routes_of
from shoal.serve.health import HealthApi


def address_of(listener: socket.socket) -> str:
    """Return the actual address of a socket, even if port 0 was requested. Crawls need the address, so that they do not
    crawl this process."""
    return str(Address(*listener.getsockname()[:2]))


def open_socket(listen: Address, asked_by: str = "--listen") -> socket.socket:
    """Open the socket. This is called first of all, so that a port in use is the first error."""
    host = listen.host or "0.0.0.0"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, listen.port))
    except OSError as error:
        listener.close()
        raise BackendUnavailable(
            f"port {listen.port}",
            error.strerror or "taken",
            f"stop the process that uses it, or choose a different port with {asked_by}",
        ) from None
    return listener


async def check_exposure(app: App, settings: ServeSettings) -> None:
    """Raise if other machines could reach the server before a token exists. At this time, the socket is bound but
    accepts no connections."""
    if is_loopback(settings.listen.host):
        return
    if not await app.access.tokens.any_made():
        raise NotAllowed(
            f"listening on {settings.listen.host} without a token would give everybody on the network full access",
            "create a token with `shoal tokens create --role admin --name NAME` on this store, or listen on 127.0.0.1",
        )
    if settings.tls_cert is None and not settings.trusted_proxies:
        note(
            f"Tokens are sent to {settings.listen.host} unencrypted: set SHOAL_TLS_CERT and"
            " SHOAL_TLS_KEY, or put a proxy with TLS in front and name it in SHOAL_TRUSTED_PROXIES."
        )


def config_of(site: ASGIApp, settings: ServeSettings) -> uvicorn.Config:
    return uvicorn.Config(
        site,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=5,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=[str(network) for network in settings.trusted_proxies],
    )


class Server(BoundedServer):
    """A server without signal handlers, because the worker handles the signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def health_of(app: App, metrics: Metrics, full_storage: Callable[[], Mapping[str, str]]) -> HealthApi:
    return HealthApi(
        app.check_store,
        lambda: (metrics.render(), metrics.content_type),
        app.clock,
        lambda: app.wake.problem,
        full_storage,
    )


@asynccontextmanager
async def probed(
    app: App, metrics: Metrics, listen: Address, full_storage: Callable[[], Mapping[str, str]] = dict
) -> AsyncIterator[str]:
    """Serve while the block runs; yield the address. The access rules are the same as in a controller."""
    settings = app.settings.serve.but(listen=listen)
    await check_exposure(app, settings)
    listener = open_socket(listen, "SHOAL_WORKER_LISTEN")
    listener.listen()
    address = f"{'http' if settings.tls_cert is None else 'https'}://{address_of(listener)}"
    authenticator = TokenAuthenticator(app.access.tokens, AuthThrottle(app.clock), settings, app.signals)
    routes = routes_of([health_of(app, metrics, full_storage)], settings.max_request_bytes)
    whole = application(routes, app.clock, app.signals, authenticator, open_probes=settings.open_probes)
    server = Server(config_of(whole, settings), ConnectionLimits(settings, app.clock, app.signals), settings)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    note(f"The worker serves /healthz, /readyz and /metrics on {address}")
    try:
        yield address
    finally:
        server.should_exit = True
        await serving
