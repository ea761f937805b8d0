"""What every test over the wire needs: the API of an empty store, listening."""

from collections.abc import AsyncIterator

import pytest

from tests.support.api import Served, served


@pytest.fixture
async def api(store_url: str) -> AsyncIterator[Served]:
    async with served(store_url) as api:
        yield api
