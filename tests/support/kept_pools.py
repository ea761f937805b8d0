"""PostgreSQL connection pools that outlive the test that opened them.

A new connection has to read the system catalogs and to plan every statement again, which costs the server more than
most tests do. So a pool that a test closes is kept, with its connections, for the next test on the same schema.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

Init = Callable[[Any], Awaitable[None]]


class KeptPools:
    """Replaces `asyncpg.create_pool` on one event loop, for pools with an `init` on the `urls` of schemas."""

    def __init__(self, create_pool: Callable[..., Any], loop: asyncio.AbstractEventLoop) -> None:
        self._create_pool = create_pool
        self._loop = loop
        self._free: defaultdict[tuple[str, str], list[KeptPool]] = defaultdict(list)
        self.urls: set[str] = set()

    def create_pool(self, url: str, *, init: Init | None = None, **options: Any) -> Any:
        if init is None or url not in self.urls or asyncio.get_running_loop() is not self._loop:
            return self._create_pool(url, init=init, **options)
        return self._lend(url, init, options)

    async def _lend(self, url: str, init: Init, options: dict[str, Any]) -> "KeptPool":
        free = self._free[url, repr(options)]
        return free.pop() if free else await KeptPool(free).open(self._create_pool, url, init, options)

    def pids(self, url: str) -> list[int]:
        """Return the server's processes behind the free pools of a schema."""
        return [
            pid for (their_url, _), free in self._free.items() if their_url == url for pool in free for pid in pool.pids
        ]

    async def close(self) -> None:
        for free in self._free.values():
            for pool in free:
                await pool.end()


class KeptPool:
    """One pool. When it is closed, it is free for the next test, unless a connection is still in use."""

    def __init__(self, free: list["KeptPool"]) -> None:
        self._free = free
        self.pids: set[int] = set()

    async def open(self, create_pool: Callable[..., Any], url: str, init: Init, options: dict[str, Any]) -> "KeptPool":
        async def begin(connection: Any) -> None:
            self.pids.add(connection.get_server_pid())
            await init(connection)

        self._pool = await create_pool(url, init=begin, **options)
        return self

    def acquire(self, *, timeout: float) -> Any:
        return self._pool.acquire(timeout=timeout)

    async def close(self) -> None:
        if self._pool.get_idle_size() == self._pool.get_size():
            self._free.append(self)
        else:
            await self._pool.close()

    async def release(self, connection: Any) -> None:
        await self._pool.release(connection)

    def terminate(self) -> None:
        self._pool.terminate()

    async def end(self) -> None:
        await self._pool.close()
