"""A callback that records its calls, for tests that wait for them."""

import asyncio
from typing import Generic, TypeVar

from tests.support.patience import wait_until

T = TypeVar("T")


class Told(list[T], Generic[T]):
    """Collects every call's argument; `at_least` waits until there are enough of them."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = asyncio.Event()

    def __call__(self, value: T) -> None:
        self.append(value)
        self._changed.set()

    async def at_least(self, number: int) -> list[T]:
        await wait_until(lambda: len(self) >= number, self._changed)
        return self
