"""Reads the frontier of one crawl from Redis as the ledger wants it: the rows that the tables of a frontier on SQL
would have. It trusts nothing of Shoal but the documented keys."""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import msgspec
import redis

Row = dict[str, Any]


def read(redis_url: str, crawl_id: str, origins: Mapping[int, str]) -> dict[str, list[Row]]:
    """Return the fates, the open URLs and the redirect targets of a crawl. `origins`: of hosts, by number."""
    with closing(redis.Redis.from_url(redis_url, protocol=2)) as client:
        keys = _Keys(client, f"scan:{{{crawl_id}}}:")
        return {"fates": keys.fates(), "frontier": keys.frontier(origins), "targets": keys.targets()}


class _Keys:
    def __init__(self, client: Any, prefix: str) -> None:
        self._client = client
        self._prefix = prefix

    def fates(self) -> list[Row]:
        found = dict.fromkeys(self._client.smembers(f"{self._prefix}seen_urls"), 0)
        found |= dict.fromkeys(self._client.smembers(f"{self._prefix}processed_urls"), 1)
        found |= {key: int(fate) for key, fate in self._client.hgetall(f"{self._prefix}url_fates").items()}
        return [{**_key(key), "fate": fate} for key, fate in found.items()]

    def frontier(self, origins: Mapping[int, str]) -> list[Row]:
        rows = []
        for member in self._client.zrange(f"{self._prefix}url_depths", 0, -1):
            host, depth = int(member[:12]), member[13:].decode()
            for entry in self._client.lrange(f"{self._prefix}url_queue:{host}:{depth}", 0, -1):
                path = entry[9:] if entry[0] & 2 else entry[1:]
                rows.append(_row(origins[host], path.decode(), entry[0] & 1, None, ("", 0)))
        holders = {
            seq: (name.decode().rpartition(":")[0], int(name.rpartition(b":")[2]))
            for name in self._client.hkeys(f"{self._prefix}walkers")
            for seq in self._client.zrange(f"{self._prefix}held:{name.decode()}", 0, -1)
        }
        for seq, record in self._client.hgetall(f"{self._prefix}touched_urls").items():
            host, path, kind, _, _, _, start, *_ = msgspec.msgpack.decode(record[13:])
            rows.append(_row(origins[host], path, kind, start, holders.get(seq, ("", 0))))
        return rows

    def targets(self) -> list[Row]:
        rows = []
        for key, stored in self._client.hgetall(f"{self._prefix}redirect_targets").items():
            end = 10 + int(stored[2:10], 16)
            facts = {"url": stored[end:].decode(), "via": stored[10:end].decode(), "fate": int(stored[:2])}
            rows.append({**_key(key), **facts})
        return rows


def _key(packed: bytes) -> Row:
    return {
        "key": int.from_bytes(packed[:8], "little", signed=True),
        "chk": int.from_bytes(packed[8:], "little", signed=True),
    }


def _row(origin: str, path: str, kind: int, start: str | None, holder: tuple[str, int]) -> Row:
    return {"origin": origin, "path": path, "kind": kind, "start": start, "job_id": holder[0], "epoch": holder[1]}
