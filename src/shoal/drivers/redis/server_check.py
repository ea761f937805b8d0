"""Checks a Redis server before data is stored in it: whether its version is supported, whether it evicts keys, whether
it is a replica, and whether it keeps its data over a restart. Properties that can change are checked again while the
server is used."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoal.base.clock import Clock
from shoal.base.errors import BackendUnavailable, RedisMisconfigured
from shoal.base.signals import Signal, Signals
from shoal.drivers.redis.connection import RedisClient, Value


class ServerSignals:
    """Emits signals about a server from any thread. Calls to the server are made in units of work, which SQLite runs on
    a separate thread, so the signals are passed to the event loop of the process that built this object. The signals do
    not wait for a commit: if an unusable server makes the transaction fail, this must be reported, too."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self._loop = asyncio.get_running_loop()

    def emit(self, signal: Signal) -> None:
        """Emit a signal soon. May be called from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._signals.emit, signal)


RECHECK_SECONDS = 5.0
KEEP_ALL = "run `redis-cli CONFIG SET maxmemory-policy noeviction` and `redis-cli CONFIG REWRITE`"
OLDEST = (6, 2)
"""The first version with `SMISMEMBER` and `LPOP` with a count. Valkey reports the Redis version to which it
corresponds."""


class RedisWarned(Signal, frozen=True, kw_only=True):
    """A property of the Redis server that its operator should know about."""

    server: str
    warning: str


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The properties that a server reports about itself."""

    version: tuple[int, ...]
    policy: str
    run_id: str  # changes whenever the server starts
    is_replica: bool
    is_persistent: bool

    @property
    def warning(self) -> str | None:
        """Return a warning for the operator about a server that Shoal can use; None if there is nothing to warn
        about."""
        if self.is_persistent:
            return None
        return (
            "it keeps nothing over a restart, so crawls would rebuild their frontiers; "
            "run `redis-cli CONFIG SET appendonly yes` and `redis-cli CONFIG REWRITE`"
        )

    @property
    def evicts(self) -> str | None:
        """Return the setting that lets the server evict keys; None if it evicts no keys."""
        return None if self.policy == "noeviction" else f"maxmemory-policy is {self.policy}"


async def read_facts(client: RedisClient) -> ServerFacts:
    answer = await client.command("INFO")  # redis-py reads it into a dictionary
    facts = {str(name): str(value) for name, value in answer.items()}
    version = tuple(int(part) for part in facts.get("redis_version", "0").split(".")[:3] if part.isdigit())
    saves = await _config(client, "save")
    return ServerFacts(
        version=version,
        policy=facts.get("maxmemory_policy", "noeviction"),
        run_id=facts.get("run_id", ""),
        is_replica=facts.get("role", "master") != "master",
        is_persistent=facts.get("aof_enabled") == "1" or bool(saves),
    )


async def _config(client: RedisClient, name: str) -> str | None:
    """Return a setting of the server; None if this user may not read it."""
    try:
        answer = await client.command("CONFIG", "GET", name)
    except (RedisMisconfigured, BackendUnavailable):
        return None
    values = answer.values() if isinstance(answer, dict) else answer[1::2]
    return next((value.decode() if isinstance(value, bytes) else str(value) for value in values), None)


async def check_server(client: RedisClient) -> ServerFacts:
    """Return the properties of a server that Shoal can use; otherwise raise an error with the command that fixes the
    problem."""
    facts = await read_facts(client)
    if facts.version < OLDEST:
        found, wanted = ".".join(map(str, facts.version)), ".".join(map(str, OLDEST))
        raise RedisMisconfigured(client.name, f"has version {found}", f"use Redis {wanted} or newer, or Valkey")
    if facts.evicts:
        raise RedisMisconfigured(
            client.name, f"may evict keys ({facts.evicts}), and with them URLs that wait", KEEP_ALL
        )
    if facts.is_replica:
        raise RedisMisconfigured(client.name, "is a replica", "point REDIS_URL at the primary")
    return facts


class WatchedRedis:
    """A Redis server that is checked again every few seconds while it is used. While it may evict keys, scripts are
    refused, so that crawls wait instead of losing URLs. Implements `RedisClient`."""

    def __init__(
        self, client: RedisClient, clock: Clock, signals: Signals, recheck_seconds: float = RECHECK_SECONDS
    ) -> None:
        self.name = client.name
        self.recheck_seconds = recheck_seconds
        self._client = client
        self._clock = clock
        self._signals = ServerSignals(signals)
        self._checked_at: float | None = None
        self._run_id = ""
        self._evicts: str | None = None

    async def command(self, *words: Value) -> Any:
        return await self._client.command(*words)

    async def script(self, name: str, keys: Sequence[str], arguments: Sequence[Value]) -> Any:
        now = self._clock.monotonic()
        if self._checked_at is None or now - self._checked_at >= self.recheck_seconds:
            await self._check()
            self._checked_at = now
        if self._evicts:
            raise BackendUnavailable(self.name, f"it may evict keys: {self._evicts}", KEEP_ALL)
        return await self._client.script(name, keys, arguments)

    async def close(self) -> None:
        await self._client.close()

    async def _check(self) -> None:
        facts = await read_facts(self._client)
        if self._run_id and facts.run_id != self._run_id:
            self._warn("it was restarted, or a different server took over; walkers notice if data was lost")
        if facts.evicts and not self._evicts:
            self._warn(f"it may evict keys ({facts.evicts}), so crawls wait; {KEEP_ALL}")
        self._run_id, self._evicts = facts.run_id, facts.evicts

    def _warn(self, warning: str) -> None:
        self._signals.emit(RedisWarned(server=self.name, warning=warning))
