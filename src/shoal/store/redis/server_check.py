"""The check of a Redis server before anything is stored in it: its version, that it evicts nothing, that it is no
replica, and whether it keeps its data over a restart."""

from dataclasses import dataclass

from shoal.base.errors import RedisMisconfigured
from shoal.store.redis.connection import RedisClient

OLDEST = (6, 2)
"""The first version with `SMISMEMBER` and `LPOP` with a count. Valkey reports the Redis version it corresponds to."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says about itself."""

    version: tuple[int, ...]
    policy: str
    is_replica: bool
    is_persistent: bool
    run_id: str  # another one after each restart

    @property
    def warning(self) -> str | None:
        """What the operator should know although Shoal works with it."""
        if self.is_persistent:
            return None
        return (
            "it keeps nothing over a restart, so crawls would rebuild their frontiers; "
            "run `redis-cli CONFIG SET appendonly yes` and `redis-cli CONFIG REWRITE`"
        )


async def read_facts(client: RedisClient) -> ServerFacts:
    answer = await client.command("INFO", "everything")
    text = answer.decode() if isinstance(answer, bytes) else ""
    facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    if isinstance(answer, dict):  # redis-py parses the answer to INFO
        facts = {str(name): str(value) for name, value in answer.items()}
    version = tuple(int(part) for part in facts.get("redis_version", "0").split(".")[:3] if part.isdigit())
    return ServerFacts(
        version=version,
        policy=facts.get("maxmemory_policy", "noeviction"),
        is_replica=facts.get("role", "master") != "master",
        is_persistent=facts.get("aof_enabled", "0") == "1"
        or (int(facts.get("rdb_last_save_time", "0") or 0) > 0 and facts.get("rdb_saves", "1") != "0"),
        run_id=facts.get("run_id", ""),
    )


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
