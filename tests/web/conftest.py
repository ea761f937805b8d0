"""A controller with a console, and browsers that visit it."""

from collections.abc import AsyncIterator

import pytest

from tests.support.controller import ServedController, served_controller
from tests.support.plain_browser import PlainBrowser


@pytest.fixture
async def shop(sqlite_url: str) -> AsyncIterator[ServedController]:
    async with served_controller(sqlite_url) as shop:
        yield shop


@pytest.fixture
def visitor(shop: ServedController) -> PlainBrowser:
    return PlainBrowser(shop.port)
