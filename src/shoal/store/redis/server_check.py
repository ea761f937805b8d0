"""The check of a Redis server before anything is stored in it: its version, that it evicts nothing, that it is not a
replica, and whether it keeps its data over a restart."""

from dataclasses import dataclass

from shoal.base.errors import BackendUnavailable, RedisMisconfigured
from shoal.base.signals import Signal
from shoal.store.redis.connection import RedisClient

OLDEST = (6, 2)
"""The first version with `SMISMEMBER` and `LPOP` with a count. Valkey reports the Redis version it corresponds to."""


class RedisWarned(Signal, frozen=True, kw_only=True):
    """Something about the Redis server that its operator should know."""

    server: str
    warning: str


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The facts a server reports about itself."""

    version: tuple[int, ...]
    policy: str
    is_replica: bool
    is_persistent: bool

    @property
    def warning(self) -> str | None:
        """Return what the operator should know although Shoal works with it."""
        if self.is_persistent:
            return None
        return (
            "it keeps nothing over a restart, so crawls would rebuild their frontiers; "
            "run `redis-cli CONFIG SET appendonly yes` and `redis-cli CONFIG REWRITE`"
        )


async def read_facts(client: RedisClient) -> ServerFacts:
    answer = await client.command("INFO")  # redis-py reads it into a dictionary
    facts = {str(name): str(value) for name, value in answer.items()}
    version = tuple(int(part) for part in facts.get("redis_version", "0").split(".")[:3] if part.isdigit())
    saves = await _config(client, "save")
    return ServerFacts(
        version=version,
        policy=facts.get("maxmemory_policy", "noeviction"),
        is_replica=facts.get("role", "master") != "master",
        is_persistent=facts.get("aof_enabled") == "1" or bool(saves),
    )


async def _config(client: RedisClient, name: str) -> str | None:
    """Return a setting of the server; None if this user may not ask for it."""
    try:
        answer = await client.command("CONFIG", "GET", name)
    except (RedisMisconfigured, BackendUnavailable):
        return None
    values = answer.values() if isinstance(answer, dict) else answer[1::2]
    return next((value.decode() if isinstance(value, bytes) else str(value) for value in values), None)


async def check_server(client: RedisClient) -> ServerFacts:
    """Return the facts of a server that Shoal can use; raise an error with the command that fixes it otherwise."""
    facts = await read_facts(client)
    if facts.version < OLDEST:
        found, wanted = ".".join(map(str, facts.version)), ".".join(map(str, OLDEST))
        raise RedisMisconfigured(client.name, f"has version {found}", f"use Redis {wanted} or newer, or Valkey")
    if facts.policy != "noeviction":
        raise RedisMisconfigured(
            client.name,
            f"may evict keys (maxmemory-policy is {facts.policy}), and with them URLs that wait",
            "run `redis-cli CONFIG SET maxmemory-policy noeviction` and `redis-cli CONFIG REWRITE`",
        )
    if facts.is_replica:
        raise RedisMisconfigured(client.name, "is a replica", "point REDIS_URL at the primary")
    return facts
