"""The connection to Redis: calls with a timeout, scripts that survive `SCRIPT FLUSH`, and translated errors.

A unit of work on PostgreSQL runs on the event loop, one on SQLite on a thread without a loop. So there are two clients
with one interface: a call of `LoopRedis` waits on the loop, a call of `ThreadRedis` blocks its thread.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

import redis
import redis.asyncio as aioredis
from hiredis import pack_command
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError
from redis.retry import Retry

from shoal.base.errors import BadConfig
from shoal.base.settings import RedisSettings
from shoal.drivers.redis.errors import translated
from shoal.drivers.redis.scripts import load

Value = str | bytes | int | float
FAILURES = (RedisError, OSError, TimeoutError)


class RedisClient(Protocol):
    """A Redis server. Answers are bytes."""

    name: str

    async def command(self, *words: Value) -> Any:
        """Send one command."""
        ...

    async def script(self, name: str, keys: Sequence[str], arguments: Sequence[Value]) -> Any:
        """Run a script; one that the server does not know (any more) is sent again. A failed call may have been carried
        out."""
        ...

    async def close(self) -> None: ...


class LoopRedis:
    """Implements `RedisClient` for callers on the event loop."""

    def __init__(self, settings: RedisSettings) -> None:
        self.name = name_of(settings)
        options = _options(settings, AsyncRetry(NoBackoff(), 0))
        self._client: Any = aioredis.Redis.from_url(settings.url, **options)
        pool = self._client.connection_pool
        pool.connection_class = type("Connection", (_QuickPacking, pool.connection_class), {})

    async def command(self, *words: Value) -> Any:
        return await self._translated(lambda: self._client.execute_command(*words))

    async def script(self, name: str, keys: Sequence[str], arguments: Sequence[Value]) -> Any:
        script = load(name)

        async def call() -> Any:
            try:
                return await self._client.execute_command("EVALSHA", script.sha, len(keys), *keys, *arguments)
            except NoScriptError:
                return await self._client.execute_command("EVAL", script.text, len(keys), *keys, *arguments)

        return await self._translated(call)

    async def close(self) -> None:
        await self._client.aclose()

    async def _translated(self, call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await call()
        except FAILURES as error:
            # Idle connections may lead to a server that is gone, or that has become a replica.
            await self._client.connection_pool.disconnect(inuse_connections=False)
            raise translated(self.name, error) from error


class ThreadRedis:
    """Implements `RedisClient` for units of work that run to completion on a thread: its calls never suspend."""

    def __init__(self, settings: RedisSettings) -> None:
        self.name = name_of(settings)
        options = _options(settings, Retry(NoBackoff(), 0))
        self._client: Any = redis.Redis.from_url(settings.url, command_packer=_QuickPacking(), **options)

    async def command(self, *words: Value) -> Any:
        return self._translated(lambda: self._client.execute_command(*words))

    async def script(self, name: str, keys: Sequence[str], arguments: Sequence[Value]) -> Any:
        script = load(name)

        def call() -> Any:
            try:
                return self._client.execute_command("EVALSHA", script.sha, len(keys), *keys, *arguments)
            except NoScriptError:
                return self._client.execute_command("EVAL", script.text, len(keys), *keys, *arguments)

        return self._translated(call)

    async def close(self) -> None:
        self._client.close()

    def _translated(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except FAILURES as error:
            self._client.connection_pool.disconnect(inuse_connections=False)
            raise translated(self.name, error) from error


class _QuickPacking:
    """Encodes a command in one call of hiredis. redis-py looks at each argument first, and there may be thousands."""

    def pack(self, *words: Any) -> list[bytes]:
        return [pack_command(words)]

    pack_command = pack  # as connections of asyncio call it


def name_of(settings: RedisSettings) -> str:
    """Return the server as it may be shown: without user and password."""
    try:
        parts = urlsplit(settings.url)
        place = f"{parts.hostname or 'localhost'}:{parts.port or 6379}" if parts.scheme != "unix" else parts.path
    except ValueError:
        raise BadConfig("REDIS_URL", "is not a valid URL", "write it as redis://host:6379/0") from None
    return f"Redis at {place}"


def _options(settings: RedisSettings, retry: Any) -> dict[str, Any]:
    # Nothing is sent twice: whether a call that failed was carried out is decided by what the next one finds.
    return {
        "socket_timeout": settings.timeout.total_seconds(),
        "socket_connect_timeout": settings.timeout.total_seconds(),
        "retry": retry,
        "protocol": 2,
        "decode_responses": False,
    }
