"""`shoal gates`, `events`, `stats`, and `policies`, on a store."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from shoal.app import opened
from shoal.base.ids import CrawlId
from shoal.base.settings_loader import load
from shoal.cli.main import main
from shoal.crawl.crawl import CrawlConfig

pytestmark = pytest.mark.usefixtures("default_store")


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """Run a command with `--json` and return its output."""
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


async def _stop_crawls(*names: str) -> None:
    """Store crawls and stop them, so that each has an event, and number the events."""
    async with opened(load().settings) as app:
        for name in names:
            await app.crawls.submit(CrawlConfig(seeds=["https://a.example/"]), crawl_id=CrawlId(name), named=[])
            await app.crawls.stop(name)
        await app.chores.forwarder.run_once()


def test_a_gate_is_stored_shown_replaced_and_removed(capsys: pytest.CaptureFixture[str]) -> None:
    Path("gate.toml").write_text('fail = ["broken_link"]\n')
    assert told(capsys, "gates", "set", "release", "gate.toml")["fail"] == ["broken_link"]
    Path("gate.json").write_text('{"rules": [{"metric": "pages", "op": ">", "threshold": 5, "severity": "warning"}]}')
    assert main(["gates", "set", "release", "gate.json"]) == 0
    assert main(["gates", "show", "release"]) == 0
    assert "Rule               pages > 5 (warning)" in capsys.readouterr().out
    assert [gate["name"] for gate in told(capsys, "gates", "ls")["items"]] == ["release"]
    assert main(["gates", "rm", "release"]) == 0
    assert main(["gates", "show", "release"]) == 5
    assert re.match(
        r'shoal: gate "release" does not exist in SQLite store .*; list them with `shoal gates ls`',
        capsys.readouterr().err,
    )


def test_a_gate_that_judges_nothing_is_not_stored(capsys: pytest.CaptureFixture[str]) -> None:
    Path("gate.toml").write_text("min_pages = 3\n")
    assert main(["gates", "set", "release", "gate.toml"]) == 2
    assert "rules are missing" in capsys.readouterr().err


def test_the_newest_events_are_listed_in_order_and_continued(capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(_stop_crawls("one", "two", "three"))
    newest = told(capsys, "events", "ls", "--limit", "2")
    assert [event["subject"] for event in newest["items"]] == ["two", "three"]
    first = told(capsys, "events", "ls", "--cursor", "0", "--limit", "1")
    assert [event["subject"] for event in first["items"]] == ["one"]
    rest = told(capsys, "events", "ls", "--cursor", str(first["next"]))
    assert ([event["subject"] for event in rest["items"]], rest["next"]) == (["two", "three"], newest["next"])
    assert main(["events", "ls"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["SEQUENCE", "TIME", "TYPE", "SUBJECT"]


def test_statistics_count_crawls_and_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(_stop_crawls("one"))
    assert told(capsys, "stats", "--hours", "2")["crawls"] == {"stopped": 1}
    assert main(["stats"]) == 0
    assert "Crawls" in capsys.readouterr().out


def test_the_newest_policy_is_last_and_each_field_is_shown_under_one_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policies", "show", "last"]) == 5
    for page in "ab":
        newest = told(capsys, "policies", "add", f"https://a.example/{page}", "--frequency", "6h", "--retries", "2")
    assert told(capsys, "policies", "show", "last")["id"] == newest["id"]
    assert main(["policies", "show", "last"]) == 0
    shown = capsys.readouterr().out
    assert "https://a.example/b" in shown
    assert "Retries " in shown
    assert "Max retry" not in shown


def test_a_boost_is_stored_and_the_rules_that_use_it_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["policies", "boost", "--label", "team=prices", "--boost", "-30", "--lasts", "6h"]
    assert told(capsys, *words)["subject"] == "label:team=prices"
    rules = told(capsys, "policies", "priority-rules")["items"]
    assert {"fact": "signal", "per": 1.0, "limit": 50.0, "most": 50.0} in rules
    assert main(["policies", "boost", "--boost", "30"]) == 2
    assert main(["policies", "boost", "--url", "https://a.example/", "--boost", "300"]) == 2
    assert "--boost cannot be '300.0'; give a number from -100 to 100" in capsys.readouterr().err


def test_the_schema_of_another_store_is_shown_and_upgraded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = f"sqlite:///{tmp_path}/other.db"
    assert told(capsys, "db", "current", "--store", store)["version"] == 0
    upgraded = told(capsys, "db", "upgrade", "--store", store)
    assert upgraded["version"] == upgraded["wanted"] > 0
