"""A controller with a console, and browsers that visit it."""

from collections.abc import AsyncIterator

import pytest

from tests.support.controller import Served, served
from tests.support.visitor import Visitor


@pytest.fixture
async def shop(sqlite_url: str) -> AsyncIterator[Served]:
    async with served(sqlite_url) as shop:
        yield shop


@pytest.fixture
def visitor(shop: Served) -> Visitor:
    return Visitor(shop.port)
