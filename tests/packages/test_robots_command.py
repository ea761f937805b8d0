"""`shoal robots test`: its output, its exit codes, and that it needs no store."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from shoal.app import opened
from shoal.base.settings_loader import load
from shoal.cli.main import main
from tests.packages.conftest import Answer, ScriptedSite, serving

FILE = """
Sitemap: https://example.org/sitemap.xml
User-agent: *
Crawl-delay: 90
Disallow: /private
Allow: /private/open

User-agent: FishBot
Disallow: /
"""

pytestmark = pytest.mark.usefixtures("bare_environment")


def host(robots: Answer = (200, {}, FILE)) -> ScriptedSite:
    return ScriptedSite(lambda path: None, robots=robots)


async def run(*words: str) -> int:
    return await asyncio.to_thread(main, ["robots", "test", *words])


async def told(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> Any:
    assert await run(*words, "--json") == code
    return json.loads(capsys.readouterr().out)


async def test_an_allowed_url_is_reported_with_everything_around_it(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(host()) as site:
        assert await run(f"{site.url}/private/open/x") == 0
    rows = [line.split("  ", 1) for line in capsys.readouterr().out.splitlines()]
    assert [(name, value.strip()) for name, value in rows] == [
        ("URL", f"{site.url}/private/open/x"),
        ("Allowed", "yes"),
        ("Why", "Line 6, in the group for all agents, decides."),
        ("Rule", "Allow: /private/open"),
        ("Agent", rows[4][1].strip()),
        ("Delay", "30 s (the file asks for 90 s, more than the maximum)"),
        ("Sitemap", "https://example.org/sitemap.xml"),
    ]
    assert rows[4][1].strip().startswith("Shoal, from 'Shoal/")


async def test_a_relative_sitemap_is_resolved_and_noted(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(host((200, {}, "Sitemap: /map.xml\nSitemap: https://e.org/s.xml\n"))) as site:
        assert await run(f"{site.url}/x") == 0
        assert f"Sitemap  {site.url}/map.xml (listed as /map.xml)" in capsys.readouterr().out
        said = await told(capsys, 0, f"{site.url}/x")
    assert said["sitemaps"] == [f"{site.url}/map.xml", "https://e.org/s.xml"]
    assert said["relative_sitemaps"] == ["/map.xml"]


async def test_a_denied_url_is_exit_code_1_with_the_rule(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(host()) as site:
        said = await told(capsys, 1, f"{site.url}/private")
        assert (said["allowed"], said["reason"], said["rule"], said["line"]) == (False, "rule", "Disallow: /private", 5)
        assert (said["group"], said["token"], said["robots_state"]) == ("*", "Shoal", "found")
        assert (said["crawl_delay_seconds"], said["crawl_delay_asked_seconds"]) == (30, 90)
        assert said["crawl_delay_was_cut"] is True
        said = await told(capsys, 1, f"{site.url}/", "--user-agent", "FishBot/2.0")
        assert (said["group"], said["rule"], said["user_agent"]) == ("fishbot", "Disallow: /", "FishBot/2.0")
    assert "FishBot/2.0" in site.agents


@pytest.mark.parametrize(
    ("robots", "code", "reason", "words"),
    [
        (
            (404, {}, ""),
            0,
            "absent",
            "The host has no robots.txt, so every URL is allowed. The server answered 404.",
        ),
        ((503, {}, ""), 1, "unreachable", "could not be fetched, so no URL is allowed. The server answered 503."),
        ((200, {}, "User-agent: other\nDisallow: /\n"), 0, "no_group", "has no group for this user agent."),
        (
            (200, {}, "User-agent: *\nDisallow: /y\n"),
            0,
            "no_rule",
            "No rule of the group for all agents matches the URL.",
        ),
    ],
)
async def test_every_reason_is_explained(
    capsys: pytest.CaptureFixture[str], robots: Answer, code: int, reason: str, words: str
) -> None:
    async with serving(host(robots)) as site:
        said = await told(capsys, code, f"{site.url}/x")
    assert said["reason"] == reason
    assert words in said["explanation"]


async def test_a_store_answers_as_a_crawl_on_it_would_be(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/shoal.db"
    async with serving(host()) as site:
        assert await run(f"{site.url}/private", "--store", store) == 5  # reading creates no store
        async with opened(load({"DATABASE_URL": store}).settings):
            pass
        assert await run(f"{site.url}/private", "--store", store) == 1
        site.robots = (404, {}, "")
        assert await run(f"{site.url}/private", "--store", store) == 1
        assert site.times("/robots.txt") == 1
        assert await run(f"{site.url}/private") == 0


async def test_no_store_is_made_where_none_is_asked_for(tmp_path: Path) -> None:
    async with serving(host()) as site:
        assert await run(f"{site.url}/") == 0
    assert await asyncio.to_thread(lambda: list(tmp_path.rglob("*.db"))) == []


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["example.org"], 2, "URL 'example.org' is not an absolute http or https URL; write it as http://host/path"),
        (["ftp://example.org/"], 2, "has a scheme other than http and https"),
        (["https://example.org/", "--user-agent", ""], 2, "--user-agent '' does not start with a name"),
        (["https://example.org/", "--user-agent", "4711"], 2, "start it with a name of letters"),
        (["https://example.org/", "--user-agent", "a\nb"], 2, "--user-agent"),
        (["https://example.org/", "--store", "mysql://x"], 4, "--store"),
        ([], 2, "URL"),
    ],
)
async def test_bad_words_are_answered_with_the_fix(
    capsys: pytest.CaptureFixture[str], words: list[str], code: int, said: str
) -> None:
    assert await run(*words) == code
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize("url", [f"http://user:hunter2{'x' * 300}@example.org/", "user:hunter2@example.org"])
async def test_the_password_of_a_refused_url_is_not_shown(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run(url) == 2
    said = capsys.readouterr().err
    assert "URL" in said
    assert "hunter2" not in said
