"""Connections that wait for the next plain HTTP request to the same origin."""

from shoal.egress.address import Endpoint
from shoal.egress.pinning_proxy.byte_stream import ByteStream


class IdleConnections:
    """The idle connections of one session, a few per origin."""

    def __init__(self, per_origin: int) -> None:
        self._per_origin = per_origin
        self._idle: dict[Endpoint, list[ByteStream]] = {}
        self._is_closed = False

    def take(self, origin: Endpoint) -> ByteStream | None:
        """Return the connection that was used last and is still open."""
        waiting = self._idle.get(origin, [])
        while waiting:
            stream = waiting.pop()
            if stream.is_reusable:
                return stream
            stream.close()
        return None

    def put(self, origin: Endpoint, stream: ByteStream) -> None:
        waiting = self._idle.setdefault(origin, [])
        if self._is_closed or not stream.is_reusable or len(waiting) >= self._per_origin:
            stream.close()
        else:
            waiting.append(stream)

    def close(self) -> None:
        self._is_closed = True
        for waiting in self._idle.values():
            for stream in waiting:
                stream.abort()
        self._idle.clear()
