"""A store that is upgraded by a newer version of Shoal while processes of the old one run."""

import asyncio
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from types import ModuleType

import pytest

import shoal
from shoal.app.connect import SchemaWatch
from shoal.base.database import queries as migrations
from shoal.base.database.sqlite import SqliteDatabase
from shoal.base.errors import SchemaMismatch
from shoal.base.signals import ChoreDone
from shoal.cli.main import main
from shoal.process import controller, local_crawl, worker
from tests.support.controller import served_controller
from tests.support.site import Site

SOON = timedelta(milliseconds=50)
SENTENCE = r"schema version 999, .* upgraded while this process ran: update Shoal and start it again"


def upgrade(sqlite_url: str, version: int = 999) -> None:
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as file:
        file.execute(f"PRAGMA user_version = {version}")


def upgrade_during(module: ModuleType, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upgrade the store when this process has opened it."""

    def watch(database: SqliteDatabase, stop: Callable[[], None]) -> SchemaWatch:
        upgrade(sqlite_url)
        return SchemaWatch(database, stop)

    monkeypatch.setattr(module, "SCHEMA_EVERY", SOON)
    monkeypatch.setattr(module, "SchemaWatch", watch)


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
    upgrade_during(worker, sqlite_url, monkeypatch)
    with pytest.raises(SchemaMismatch, match=SENTENCE):
        async with asyncio.timeout(30):
            await worker.work({"DATABASE_URL": sqlite_url})


@pytest.mark.exhaustive
@pytest.mark.usefixtures("default_store")
@pytest.mark.parametrize("command", ["crawl", "audit"])
def test_a_crawl_at_the_terminal_is_paused_with_a_sentence_and_resumed_later(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with Site(pages=40, delay=0.02) as site:
        with monkeypatch.context() as patch:
            upgrade_during(local_crawl, sqlite_url, patch)
            assert main([command, site.address, "--concurrency", "1", "--delay", "0.05"]) == 4
        out, said = capsys.readouterr()
        assert re.search(SENTENCE, said), said
        assert "paused (its store was upgraded while it ran)" in out + said
        resume = re.search(r"Once Shoal is updated, resume with `shoal (.*)`", said)
        assert resume
        upgrade(sqlite_url, migrations.newest("sqlite"))  # as if this were the newer version
        assert main(resume[1].split()) == 0
        assert site.pages_asked == len(site.urls)


async def _read(run: shoal.CrawlRun) -> list[str]:
    return [page.url async for page in run]


@pytest.mark.usefixtures("bare_environment")
async def test_a_crawl_of_the_library_is_paused_and_raises(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    upgrade_during(local_crawl, sqlite_url, monkeypatch)
    with Site(pages=40, delay=0.02) as site:
        run = shoal.crawl(site.address, concurrency=1, delay_seconds=0.05, store=sqlite_url)
        with pytest.raises(SchemaMismatch, match=SENTENCE):
            await asyncio.wait_for(_read(run), 30)
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as file:
        assert file.execute("SELECT state, state_reason FROM crawl").fetchall() == [("paused", "schema_mismatch")]
