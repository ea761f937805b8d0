"""A callback that records its calls, for tests that wait for them."""

import asyncio
from typing import Any, Generic, TypeVar

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

    async def at_least(self, number: int, *tasks: "asyncio.Task[Any]") -> list[T]:
        """Wait for so many calls, while the tasks that make them run."""
        await wait_until(lambda: len(self) >= number, self._changed, *tasks)
        return self
