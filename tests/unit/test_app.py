"""The composition root builds each object once, and imports what a crawl does not need only when it is used."""

import subprocess
import sys
from functools import cached_property
from pathlib import Path

import pytest

from shoal.app import opened
from shoal.base.settings_loader import load

GROUPS = ("stores", "access", "audit", "events", "page_jobs", "plan", "chores", "rest_api")
NOT_FOR_CRAWLS = (
    "asyncpg",
    "redis",
    "hiredis",
    "starlette",
    "shoal.access.tokens",
    "shoal.app.chores",
    "shoal.audit.analyses",
    "shoal.events.webhooks",
    "shoal.page_jobs.groups",
    "shoal.plan.policies",
    "shoal.base.database.postgres",
)
OPEN = """
import asyncio, sys
from shoal.app import opened
from shoal.cli import crawl
from shoal.base.settings_loader import load

async def main():
    async with opened(load({"DATABASE_URL": sys.argv[1]}, env={}).settings):
        print([name for name in sys.argv[2:] if name in sys.modules])

asyncio.run(main())
"""


@pytest.mark.parametrize("group", GROUPS)
async def test_each_object_is_built_once_and_shared(sqlite_url: str, group: str) -> None:
    async with opened(load({"DATABASE_URL": sqlite_url, "REDIS_URL": "redis://127.0.0.1:1"}, env={}).settings) as app:
        holder = getattr(app, group)
        names = [name for name, value in vars(type(holder)).items() if isinstance(value, cached_property)]
        assert names
        assert [name for name in names if getattr(holder, name) is not getattr(holder, name)] == []


def test_an_app_for_a_crawl_imports_nothing_that_crawls_do_not_need(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OPEN, f"sqlite:///{tmp_path}/shoal.db", *NOT_FOR_CRAWLS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
