"""Connections to Redis, the translation of its errors into Shoal's errors, and the Lua scripts."""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import redis
import redis.asyncio as aioredis
import redis.exceptions as foreign
from hiredis import pack_command
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError
from redis.retry import Retry

from shoal.base.errors import BackendUnavailable, BadConfig, RedisMisconfigured, ShoalError
from shoal.base.settings import RedisSettings

MEMORY = "raise its limit, such as with `redis-cli CONFIG SET maxmemory 4gb`, or remove crawls that have ended"
PRIMARY = "it is a replica: point REDIS_URL at the primary; the next call connects again"
PASSWORD = "put the password into REDIS_URL, such as redis://:password@host:6379/0"
PERMISSION = "give the user of REDIS_URL the rights `~scan:* ~{shoal}:* +@all -@admin`"
CLUSTER = "point REDIS_URL at a server that is not part of a cluster, or at a proxy in front of the cluster"

MISCONFIGURED = {
    "NOAUTH": ("wants a password", PASSWORD),
    "WRONGPASS": ("refuses the user or the password", PASSWORD),
    "NOPERM": ("refuses a command to this user", PERMISSION),
    "MOVED": ("is a node of a cluster", CLUSTER),
    "ASK": ("is a node of a cluster", CLUSTER),
    "CROSSSLOT": ("is a node of a cluster", CLUSTER),
}
"""Errors that only the operator can fix."""

TEMPORARY = {
    "LOADING": ("it is loading its data", "wait until it has started"),
    "BUSY": ("a script of somebody else is running", "wait, or end it with `redis-cli SCRIPT KILL`"),
    "READONLY": ("it does not accept writes", PRIMARY),
    "MASTERDOWN": ("it has lost its primary", "check the primary"),
    "CLUSTERDOWN": ("its cluster is down", "check the cluster"),
    "TRYAGAIN": ("its cluster is moving keys", "wait until that is done"),
    "OOM": ("it has reached its memory limit", MEMORY),
    "MISCONF": ("it cannot save its data", "check its disk and its log"),
    "NOREPLICAS": ("it has too few replicas to accept writes", "check its replicas"),
}
"""Errors that may be temporary: the caller tries again later."""


CLASSES = {
    foreign.AuthenticationError: "NOAUTH",
    foreign.NoPermissionError: "NOPERM",
    foreign.ReadOnlyError: "READONLY",
    foreign.OutOfMemoryError: "OOM",
    foreign.BusyLoadingError: "LOADING",
    foreign.MasterDownError: "MASTERDOWN",
    foreign.ClusterDownError: "CLUSTERDOWN",
    foreign.ClusterCrossSlotError: "CROSSSLOT",
    foreign.TryAgainError: "TRYAGAIN",
    foreign.MovedError: "MOVED",
    foreign.AskError: "ASK",
}
"""Error responses for which redis-py has an exception class; their messages lack the first word (the code)."""

PHRASES = {
    "invalid username-password pair": "WRONGPASS",
    "ACL failure in script": "NOPERM",
    "The user executing the script can't run": "NOPERM",
}
IN_SCRIPT = re.compile(r"user_script: ?\d+: -?([A-Z]+) ")  # how Redis 6.2 reports the error of a call in a script


def code_of(error: Exception) -> str:
    """Return the code of the server's response, which is its first word. If redis-py or a script has hidden this word,
    find the code by other means."""
    words = str(error)
    for phrase, code in PHRASES.items():
        if phrase in words:
            return code
    for kind, code in CLASSES.items():
        if isinstance(error, kind):
            return code
    inside = IN_SCRIPT.search(words)
    return inside[1] if inside else words.partition(" ")[0].upper()


def translated(name: str, error: Exception) -> ShoalError:
    """Return Shoal's error for an error of redis-py or of the socket, or for a call that took too long."""
    code = code_of(error)
    if code in MISCONFIGURED:
        return RedisMisconfigured(name, *MISCONFIGURED[code])
    if code in TEMPORARY:
        return BackendUnavailable(name, *TEMPORARY[code])
    if isinstance(error, foreign.TimeoutError | TimeoutError):
        return BackendUnavailable(name, "it did not respond in time", "check the server and the network")
    if isinstance(error, foreign.ResponseError):
        return BackendUnavailable(name, f"it refused a call: {error}", "check its version and its log")
    why = str(error).rstrip(".") or type(error).__name__
    return BackendUnavailable(name, why, "check that it is running and that REDIS_URL is correct")


BATCH = 1000  # entries per call: Redis serves no other client while a script runs
FOLDER = Path(__file__).parent / "scripts"


@dataclass(frozen=True, slots=True)
class Script:
    """A script, and the hash under which the server caches it."""

    text: str
    sha: str


@cache
def load(name: str) -> Script:
    text = (FOLDER / f"{name}.lua").read_text(encoding="utf-8")
    shared = FOLDER / f"{name.partition('_')[0]}.lua"
    if shared.exists():
        text = f"{shared.read_text(encoding='utf-8')}\n{text}"
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


Value = str | bytes | int | float
FAILURES = (RedisError, OSError, TimeoutError)


class RedisClient(Protocol):
    """A Redis server. Responses are bytes."""

    name: str

    async def command(self, *words: Value) -> Any:
        """Send one command."""
        ...

    async def script(self, name: str, keys: Sequence[str], arguments: Sequence[Value]) -> Any:
        """Run a script; if the server does not know the script (any more), send it again. A failed call may have been
        carried out."""
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
        return await self._translated(lambda: self._send(*words))

    async def script(self, name: str, keys: Sequence[str], arguments: Sequence[Value]) -> Any:
        script = load(name)

        async def call() -> Any:
            try:
                return await self._send("EVALSHA", script.sha, len(keys), *keys, *arguments)
            except NoScriptError:
                return await self._send("EVAL", script.text, len(keys), *keys, *arguments)

        return await self._translated(call)

    async def close(self) -> None:
        await self._client.aclose()

    async def _translated(self, call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await call()
        except FAILURES as error:
            # Idle connections may lead to a server that is gone or has become a replica.
            await self._disconnect_idle()
            raise translated(self.name, error) from error

    def _send(self, *words: Value) -> Awaitable[Any]:
        return self._client.execute_command(*words)  # type: ignore[no-any-return]

    async def _disconnect_idle(self) -> None:
        await self._client.connection_pool.disconnect(inuse_connections=False)


class ThreadRedis(LoopRedis):
    """Implements `RedisClient` for units of work that run to completion on a thread: its client blocks, so its calls
    never suspend."""

    def __init__(self, settings: RedisSettings) -> None:
        self.name = name_of(settings)
        options = _options(settings, Retry(NoBackoff(), 0))
        self._client: Any = redis.Redis.from_url(settings.url, command_packer=_QuickPacking(), **options)

    async def close(self) -> None:
        self._client.close()

    async def _send(self, *words: Value) -> Any:
        return self._client.execute_command(*words)

    async def _disconnect_idle(self) -> None:
        self._client.connection_pool.disconnect(inuse_connections=False)


class _QuickPacking:
    """Encodes a command in one call of hiredis. redis-py looks at each argument first, and there may be thousands."""

    def pack(self, *words: Any) -> list[bytes]:
        return [pack_command(words)]

    pack_command = pack  # the name that connections of asyncio use


def name_of(settings: RedisSettings) -> str:
    """Return the name of the server without user and password, so that it may be shown."""
    try:
        parts = urlsplit(settings.url)
        place = f"{parts.hostname or 'localhost'}:{parts.port or 6379}" if parts.scheme != "unix" else parts.path
    except ValueError:
        raise BadConfig("REDIS_URL", "is not a valid URL", "write it as redis://host:6379/0") from None
    return f"Redis at {place}"


def _options(settings: RedisSettings, retry: Any) -> dict[str, Any]:
    # Nothing is sent twice: after a failed call, the next call finds out whether the failed one was carried out.
    return {
        "socket_timeout": settings.timeout.total_seconds(),
        "socket_connect_timeout": settings.timeout.total_seconds(),
        "retry": retry,
        "protocol": 2,
        "decode_responses": False,
    }
