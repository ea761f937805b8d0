"""The listening socket of a process, the exposure check, and the server settings. The application comes from the
caller."""

import socket

import uvicorn
from starlette.types import ASGIApp

from shoal.app import App
from shoal.base.errors import BackendUnavailable, NotAllowed
from shoal.base.parsing import Address, is_loopback
from shoal.cli.output import note
from shoal.settings import ServeSettings


def address_of(listener: socket.socket) -> str:
    """Return the actual address of a socket, whatever port was requested. Crawls need it to avoid crawling this
    process."""
    return str(Address(*listener.getsockname()[:2]))


def open_socket(listen: Address, asked_by: str = "--listen") -> socket.socket:
    """Open the socket. Done before anything else, so that a taken port is the first error."""
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
            f"stop the process that uses it, or choose another with {asked_by}",
        ) from None
    return listener


async def check_exposure(app: App, settings: ServeSettings) -> None:
    """Raise if other machines could reach the server before a token exists. The socket is bound, but accepts nothing
    yet."""
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
