"""The render service, `shoal renderer`."""

import asyncio

from shoal.access.limits import AuthThrottle, ConnectionLimits
from shoal.app.render import service_pool
from shoal.base.clock import SystemClock
from shoal.base.machine import on_stop
from shoal.base.parsing import Address, is_loopback
from shoal.base.settings import Settings
from shoal.observe.logs import note
from shoal.process.http import Server, address_of, config_of, open_socket
from shoal.process.lifetime import watched
from shoal.serve.application import application
from shoal.serve.authentication import SharedTokenAuthenticator
from shoal.serve.console.shell import Shell
from shoal.serve.endpoint import routes_of
from shoal.serve.openapi import DocsApi
from shoal.serve.renderer import RendererApi


def listen_address(settings: Settings) -> Address:
    """Return the address to listen on. Without a token, it is an address that other machines cannot reach."""
    wanted = settings.render.listen
    if settings.render.token or is_loopback(wanted.host):
        return wanted
    note("Without SHOAL_RENDERER_TOKEN the renderer listens on 127.0.0.1 only.")
    return Address("127.0.0.1", wanted.port)


async def serve(settings: Settings) -> None:
    """Run the render service until it is stopped."""
    address = listen_address(settings)
    listener = open_socket(address)
    signals, metrics = watched(settings)
    clock = SystemClock()
    pool = service_pool(settings, clock, signals)
    pool.check()
    serve = settings.serve.but(listen=Address(*listener.getsockname()[:2]), tls_cert="", tls_key="", public_url="")
    shell = Shell((), clock)
    api = RendererApi(pool, settings.render.queue, lambda: (metrics.render(), metrics.content_type))
    routes = routes_of([api, DocsApi((RendererApi, DocsApi), shell)], serve.max_request_bytes)
    authenticator = SharedTokenAuthenticator(settings.render.token, AuthThrottle(clock), address.host, signals)
    whole = application(routes, clock, signals, authenticator, open_probes=settings.serve.open_probes)
    server = Server(config_of(whole, serve), ConnectionLimits(serve, clock, signals), serve)

    def stop() -> None:
        if server.should_exit:
            server.force_exit = True
        server.should_exit = True

    on_stop(stop)
    listener.listen()
    note(f"The renderer is listening on http://{address_of(listener)}")
    try:
        await server.serve(sockets=[listener])
    finally:
        await asyncio.shield(pool.close())
