"""Run every command and every program of the guides as written, against a small site instead of example.com."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.audit.gate import parse_gate
from shoal.base.clock import SystemClock
from shoal.events.signature import new_secret, sign
from shoal.extract.rules import read_rules
from shoal.page_jobs.group import GroupConfig
from tests.support.fleet import Fleet, clean_environment
from tests.support.processes import run_shoal
from tests.support.site import Site

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
EXAMPLE = "https://example.com/"
DEADLINE_SECONDS = 120
FOR_THE_SHELL = frozenset("|<>&;$`*?~")


def blocks(page: str, language: str) -> list[str]:
    text = (GUIDES / page).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with Site(pages=getattr(request, "param", 1)) as site:  # at the default speed, one page per second
        yield site


of_two_pages = pytest.mark.parametrize("site", [2], indirect=True)


def run(words: list[str], folder: Path, **more: str) -> str:
    path = f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    env = clean_environment(folder) | {"PYTHONPATH": path, **more}
    done = subprocess.run(
        words, cwd=folder, env=env, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_commands(page: str, site: Site, tmp_path: Path, **env: str) -> int:
    """Run every shell command of a guide and return how many there were."""
    (tmp_path / "shoal").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m shoal "$@"\n')
    (tmp_path / "shoal").chmod(0o755)
    commands = "".join(blocks(page, "sh")).splitlines()
    for command in commands:
        command = command.replace(EXAMPLE, site.address)
        if command.startswith("./shoal ") and not FOR_THE_SHELL & set(command):
            words, how = shlex.split(command)[1:], clean_environment(tmp_path) | env
            done = run_shoal(*words, cwd=tmp_path, env=how, timeout=DEADLINE_SECONDS)
            assert done.returncode == 0, done.stderr
        else:
            run(["sh", "-c", command], tmp_path, **env)
    return len(commands)


def test_the_commands_of_the_crawl_guide_work(site: Site, tmp_path: Path) -> None:
    assert run_commands("crawl-a-site.md", site, tmp_path) >= 5
    assert {"pages.jsonl", "pages.csv", "fish.jsonl", "here.db"} <= {path.name for path in tmp_path.iterdir()}


def test_the_commands_of_the_guide_on_recrawls_work(site: Site, tmp_path: Path) -> None:
    assert run_commands("recrawl.md", site, tmp_path) == 2


def test_the_commands_of_the_guide_on_following_a_crawl_work(site: Site, tmp_path: Path) -> None:
    assert run_commands("follow-a-crawl.md", site, tmp_path) == 6


def test_the_commands_of_the_guide_on_scheduling_work(site: Site, tmp_path: Path) -> None:
    allowed = {"SHOAL_ALLOW_NETWORKS": "127.0.0.0/8"}
    assert run_commands("schedule-crawls.md", site, tmp_path, **allowed) == 6
    assert len((tmp_path / "policies.csv").read_text().splitlines()) == 3


def test_the_commands_of_the_guide_on_webhooks_work(site: Site, tmp_path: Path) -> None:
    assert run_commands("webhooks-and-events.md", site, tmp_path, SHOAL_ALLOW_NETWORKS="127.0.0.0/8") == 2


def test_the_signature_check_of_the_guide_on_webhooks_accepts_only_genuine_deliveries() -> None:
    [program] = blocks("webhooks-and-events.md", "python")
    names: dict[str, Any] = {}
    exec(program, names)
    secret, body, now = new_secret(), b'{"type": "crawl.completed"}', int(SystemClock().micros() / 1e6)

    def is_accepted(sent_at: int, content: bytes) -> bool:
        headers = {"webhook-id": "evt_1", "webhook-timestamp": str(sent_at)}
        headers["webhook-signature"] = sign([new_secret(), secret], "evt_1", sent_at, body)
        return bool(names["is_from_shoal"](secret, headers, content))

    assert is_accepted(now, body)
    assert not is_accepted(now, body + b" ")
    assert not is_accepted(now - 3600, body)


@of_two_pages
def test_the_rule_sets_and_commands_of_the_guide_on_data_extraction_work(site: Site, tmp_path: Path) -> None:
    rules, *others = [text for text in blocks("extract-data.md", "toml") if "fields" in text]
    for text in others:
        read_rules(tomllib.loads(text))
    (tmp_path / "rules.toml").write_text(rules)
    assert run_commands("extract-data.md", site, tmp_path) == 4
    records = [json.loads(line) for line in (tmp_path / "data.jsonl").read_text().splitlines()]
    assert records
    assert all(record["data"]["title"] == record["h1"] and record["data"]["links"] for record in records)
    again = [json.loads(line) for line in (tmp_path / "again.jsonl").read_text().splitlines()]
    assert {line["url"]: line["data"] for line in again} == {record["url"]: record["data"] for record in records}


@of_two_pages
def test_the_commands_of_the_guide_on_page_jobs_work(site: Site, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/jobs.db"
    (tmp_path / "urls.txt").write_text(f"# two pages\n{site.url(0)}\n{site.url(1)}\n")
    (tmp_path / "rules.toml").write_text('[fields.title]\ncss = "title"\nrequired = true\n')
    with Fleet(tmp_path, store, SHOAL_PAGE_SPEED="max") as fleet:
        fleet.worker()
        env = {"DATABASE_URL": store, "SHOAL_ALLOW_NETWORKS": "127.0.0.0/8"}
        assert run_commands("page-jobs.md", site, tmp_path, **env) == 4
    results = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert sorted(result["url"] for result in results) == [site.url(0), site.url(1)]
    assert all(result["data"]["title"] for result in results)
    [body] = blocks("page-jobs.md", "json")
    assert GroupConfig.read(json.loads(body)).group == "monday"


def test_the_commands_of_the_guide_on_exports_work(site: Site, tmp_path: Path) -> None:
    assert run_commands("export-pages.md", site, tmp_path) == 3
    made = {"pages.parquet", "site.warc.gz", "site.cdxj", "site.md", "fish.parquet", "broken.csv"}
    assert made <= {path.name for path in tmp_path.iterdir()}


def test_the_guide_to_moving_a_crawl_works_as_written(site: Site, tmp_path: Path) -> None:
    assert run_commands("move-a-crawl.md", site, tmp_path) == 3


def test_the_command_of_the_guide_on_normalizing_urls_works(site: Site, tmp_path: Path) -> None:
    assert run_commands("normalize-urls.md", site, tmp_path) == 1


def test_the_commands_of_the_guide_on_robots_work(site: Site, tmp_path: Path) -> None:
    assert run_commands("robots-and-sitemaps.md", site, tmp_path) >= 1


@pytest.mark.parametrize("place", range(len(blocks("python-library.md", "python"))))
def test_the_programs_of_the_library_guide_work(site: Site, tmp_path: Path, place: int) -> None:
    program = blocks("python-library.md", "python")[place].replace(EXAMPLE, site.address)
    assert run([sys.executable, "-W", "error", "-c", program], tmp_path)


def test_the_commands_of_the_guide_on_jobs_work(site: Site, tmp_path: Path) -> None:
    assert run_commands("jobs.md", site, tmp_path) == 10


def test_the_commands_of_the_guide_on_tokens_work(site: Site, tmp_path: Path) -> None:
    assert run_commands("api-tokens.md", site, tmp_path) == 4


@of_two_pages
def test_the_commands_of_the_guide_on_the_rest_api_work(site: Site, sqlite_url: str, tmp_path: Path) -> None:
    script = "".join(blocks("rest-api.md", "sh"))
    with Fleet(tmp_path, sqlite_url) as fleet:
        fleet.controller(workers=1)
        script = script.replace(EXAMPLE, site.address).replace("127.0.0.1:8700", f"127.0.0.1:{fleet.port}")
        said = run(["sh", "-eu", "-c", script], tmp_path)
    assert "event: end" in said
    assert len(json.loads((tmp_path / "pages.json").read_text())["items"]) >= 2


def test_the_gate_and_the_commands_of_the_guide_on_audits_work(site: Site, tmp_path: Path) -> None:
    [gate] = blocks("audit-a-site.md", "toml")
    assert len(parse_gate(gate, "gate.toml").rules) == 3
    assert run_commands("audit-a-site.md", site, tmp_path) == 2
