"""Faults of a Redis server that carries lanes: it forgets, dies, evicts, and its proxy is cut or slow."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tests.support.delay_proxy import DelayProxy, delay_proxy
from tests.support.servers import RedisServer, Servers, ask_redis

SLOW_SECONDS = 1.0  # as long as a lease of `fleet.TENTH`
LONG_ROUND_TRIP = 0.5


@contextmanager
def redis_behind_a_proxy(servers: Servers, *, durable: bool) -> Iterator["RedisFaults"]:
    server = servers.new_redis(durable=durable)
    try:
        with delay_proxy(server.url) as proxy:
            yield RedisFaults(server, proxy)
    finally:
        server.kill()


class RedisFaults:
    """A Redis server behind a proxy, and what may happen to both. Each fault is over when it returns."""

    def __init__(self, server: RedisServer, proxy: DelayProxy) -> None:
        self._server = server
        self._proxy = proxy
        self.url = proxy.url

    def all(self) -> dict[str, Callable[[int], None]]:
        """Return the faults by name. They take a number, as the faults of a fleet do, and ignore it."""
        return {
            "redis flushed": lambda _: self._ask("FLUSHALL"),
            "redis scripts forgotten": lambda _: self._ask("SCRIPT", "FLUSH"),
            "redis connections cut": lambda _: self._ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"),
            "redis killed": lambda _: self._kill(),
            "redis slow": lambda _: self._slow(),
            "redis evicts": lambda _: self._evict(),
        }

    def _ask(self, *words: str) -> None:
        ask_redis(self._server.url, *words)

    def _kill(self) -> None:
        self._server.kill()
        self._server.start()

    def _slow(self) -> None:
        self._proxy.delay_seconds = LONG_ROUND_TRIP
        time.sleep(SLOW_SECONDS)
        self._proxy.delay_seconds = 0.0

    def _evict(self) -> None:
        """Let the server evict whatever it has, and forbid it again."""
        self._ask("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
        self._ask("CONFIG", "SET", "maxmemory", "1mb")
        with suppress(ConnectionError):  # there may be nothing left to evict
            self._ask("SET", "anything", "x")
        self._ask("CONFIG", "SET", "maxmemory", "0")
        self._ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
        self._ask("DEL", "anything")
