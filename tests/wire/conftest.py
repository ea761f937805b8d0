"""Fixtures for tests over HTTP: a listening API server with an empty store."""

from collections.abc import AsyncIterator

import pytest

from tests.support.api import Served, served


@pytest.fixture
async def api(store_url: str) -> AsyncIterator[Served]:
    async with served(store_url) as api:
        yield api
