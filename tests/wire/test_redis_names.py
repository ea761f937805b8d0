"""Names that could be taken for patterns or parts of keys (F40, B77): refused at every edge, and Redis sees none."""

import asyncio
from typing import Any
from urllib.parse import quote

import pytest

import shoal
from shoal.app import opened
from shoal.base.errors import InvalidInput
from shoal.base.ids import CrawlId
from shoal.base.settings_loader import load
from shoal.cli.main import main
from shoal.compat import PersistentUrlQueueManager
from shoal.crawl.crawl import CrawlConfig
from tests.support.api import served_api
from tests.support.servers import ask_redis

BAD = [
    "a:b",
    "{a}",
    "a}",
    "*",
    "a*",
    "[a]",
    "a?",
    "a b",
    "ä",
    "\u202ea",
    "a\n",
    "a\\",
    "x" * 65,
    "x" * 512,
    "",
]
SEED = "http://127.0.0.1:1/"


@pytest.fixture(autouse=True)
def _on_redis(default_store: None, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("SHOAL_FRONTIER", "redis")


@pytest.fixture
def keys(redis_url: str) -> Any:
    return lambda: ask_redis(redis_url, "DBSIZE")


@pytest.mark.parametrize("name", BAD)
def test_the_library_refuses_a_bad_name(name: str, keys: Any) -> None:
    with pytest.raises(InvalidInput, match="valid id"):
        shoal.crawl(SEED, id=name)
    assert keys() == "0"


@pytest.mark.parametrize("name", BAD)
def test_the_classes_of_older_projects_refuse_a_bad_name(name: str, keys: Any) -> None:
    with pytest.raises(InvalidInput, match="valid id"):
        PersistentUrlQueueManager(name, [SEED])
    with pytest.raises(InvalidInput, match="valid id"):
        PersistentUrlQueueManager.resume(name)
    assert keys() == "0"


@pytest.mark.parametrize("option", ["--id", "--resume"])
@pytest.mark.parametrize("name", BAD)
def test_the_command_line_refuses_a_bad_name(
    name: str, option: str, keys: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = [SEED] if option == "--id" else []
    assert main(["crawl", *seeds, f"{option}={name}"]) == 2
    assert "is not a valid id; use 1 to 64 letters" in capsys.readouterr().err
    assert keys() == "0"


@pytest.mark.parametrize("name", BAD)
async def test_the_api_refuses_a_crawl_with_a_bad_name(name: str, sqlite_url: str, redis_url: str, keys: Any) -> None:
    async with served_api(sqlite_url, REDIS_URL=redis_url, SHOAL_FRONTIER="redis") as api:
        status, _ = await api.ask("/api/v1/crawls", {"seeds": [SEED], "id": name})
        assert status in (400, 422)
        path = quote(name, safe="") or "%20"
        for action in ("", "/pages", "/frontier"):
            status, _ = await api.ask(f"/api/v1/crawls/{path}{action}")
            assert status in (400, 404)
        status, _ = await api.ask(f"/api/v1/crawls/{path}/pause", {})
        assert status in (400, 404)
    assert keys() == "0"


@pytest.mark.parametrize("name", [name for name in BAD if name])
def test_a_bad_name_that_was_not_checked_writes_no_key(name: str, keys: Any) -> None:
    async def submit() -> None:
        async with opened(load().settings) as app:
            await app.crawls.submit(CrawlConfig(seeds=["https://example.org/"]), crawl_id=CrawlId(name))

    with pytest.raises(InvalidInput, match="cannot be part of a key"):
        asyncio.run(submit())
    assert keys() == "0"


@pytest.mark.parametrize("name", [*BAD, "a_b", "a.b"])
def test_a_worker_does_not_start_with_a_bad_name(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], keys: Any
) -> None:
    monkeypatch.setenv("GRPC_NODE_ID", name)
    if name:  # an empty setting is one that is not set
        assert main(["worker"]) == 4
        assert "letters, digits and hyphens" in capsys.readouterr().err
    assert keys() == "0"
