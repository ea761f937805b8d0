"""A store that is upgraded by a newer version of Shoal while processes of the old one run."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta

import pytest

from shoal.app.schema_watch import SchemaWatch
from shoal.base.database.sqlite import SqliteDatabase
from shoal.base.errors import SchemaMismatch
from shoal.base.signals import ChoreDone
from shoal.process import controller, worker
from tests.support.controller import served_controller

SOON = timedelta(milliseconds=50)
SENTENCE = r"schema version 999, .* upgraded while this process ran: update Shoal and start it again"


def upgrade(sqlite_url: str) -> None:
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as file:
        file.execute("PRAGMA user_version = 999")


async def test_a_controller_drains_and_ends_with_a_sentence(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "SCHEMA_EVERY", SOON)

    async def live() -> None:
        async with served_controller(sqlite_url) as shop, asyncio.timeout(30):
            stopped = asyncio.Event()
            shop.app.signals.subscribe(
                lambda one: isinstance(one, ChoreDone) and "stopped" in one.did and stopped.set()
            )
            assert (await shop.ask("/healthz")).status == 200
            upgrade(sqlite_url)
            await stopped.wait()

    with pytest.raises(SchemaMismatch, match=SENTENCE):
        await live()


@pytest.mark.usefixtures("bare_environment")
async def test_a_worker_drains_and_ends_with_a_sentence(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def watch(database: SqliteDatabase, stop: Callable[[], None]) -> SchemaWatch:
        upgrade(sqlite_url)  # the worker has opened its store by now
        return SchemaWatch(database, stop)

    monkeypatch.setattr(worker, "SCHEMA_EVERY", SOON)
    monkeypatch.setattr(worker, "SchemaWatch", watch)
    with pytest.raises(SchemaMismatch, match=SENTENCE):
        async with asyncio.timeout(30):
            await worker.work({"DATABASE_URL": sqlite_url})
