"""Fixtures for tests over HTTP: a listening API server with an empty store."""

from collections.abc import AsyncIterator

import pytest

from tests.support.api import ServedApi, served_api


@pytest.fixture
async def api(store_url: str) -> AsyncIterator[ServedApi]:
    async with served_api(store_url) as api:
        yield api
