"""Limits on what a browser may do through the proxy."""

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.settings import EgressSettings


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """Limits on time, size and connections; each session may have its own."""

    head_timeout: timedelta = timedelta(seconds=20)  # for a whole request head, and between two requests
    slot_timeout: timedelta = timedelta(seconds=10)  # for a free connection to a host
    connect_timeout: timedelta = timedelta(seconds=10)
    idle_timeout: timedelta = timedelta(seconds=20)  # without a byte in either direction
    total_timeout: timedelta = timedelta(seconds=60)  # for one request
    tunnel_timeout: timedelta = timedelta(minutes=5)  # a tunnel carries many requests, or a WebSocket
    yield_after: timedelta = timedelta(seconds=1)  # an idle tunnel is closed after this time if a request waits
    max_head_bytes: int = 64_000
    max_headers: int = 100
    max_message_bytes: int = 50_000_000  # size of one response, or of one direction of a tunnel
    max_session_bytes: int = 200_000_000  # received in all
    host_connections: int = 6
    session_connections: int = 64
    client_connections: int = 1024  # for the whole proxy

    @classmethod
    def of(cls, settings: "EgressSettings") -> "ProxyLimits":
        return cls(
            connect_timeout=settings.connect_timeout,
            idle_timeout=settings.idle_timeout,
            total_timeout=settings.total_timeout,
            max_head_bytes=settings.max_header_bytes,
            max_headers=settings.max_headers,
        )
