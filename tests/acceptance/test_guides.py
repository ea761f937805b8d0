"""Run every command and every program of the guides as written, against a small site instead of example.com."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shoal.audit.gate import parse_gate
from shoal.base.clock import SystemClock
from shoal.events.webhook import new_secret, sign
from shoal.extract.rules import read_rules
from shoal.page_jobs.spec import GroupConfig
from tests.support.fleet import Fleet, Shoal, clean_environment, wait_for
from tests.support.processes import run_shoal
from tests.support.reader import Reader, blocks_of, commands_in, is_shown
from tests.support.servers import free_port
from tests.support.site import Site, path_of

pytestmark = pytest.mark.exhaustive

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
EXAMPLE = "https://example.com/"
DEADLINE_SECONDS = 120
RENDERER_TOKEN = "shl-long-and-random"
FOR_THE_SHELL = frozenset("|<>&;$`*?~")


def blocks(page: str, language: str) -> list[str]:
    text = (GUIDES / page).read_text("utf-8")
    return re.findall(rf"^```{language}(?: title=.*)?\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with Site(pages=getattr(request, "param", 1)) as site:
        site.robots = "User-agent: *\nCrawl-delay: 1\n"  # the speed of a site that is not on this machine
        yield site


of_two_pages = pytest.mark.parametrize("site", [2], indirect=True)


def run(words: list[str], folder: Path, **more: str) -> str:
    return run_to_the_end(words, folder, **more).stdout


def run_to_the_end(words: list[str], folder: Path, **more: str) -> "subprocess.CompletedProcess[str]":
    path = f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    env = clean_environment(folder) | {"PYTHONPATH": path, **more}
    done = subprocess.run(
        words, cwd=folder, env=env, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def run_commands(page: str, site: Site, tmp_path: Path, **env: str) -> int:
    """Write every file of a guide, run its commands, compare their output, and return how many there were."""
    commands, said = 0, ("", "")
    for block in blocks_of(GUIDES / page):
        text = block.text.replace(EXAMPLE, site.address)
        if block.title:
            (tmp_path / block.title).write_text(text)
        elif block.language == "sh":
            said = run_lines(commands_in(text), tmp_path, **env)
            commands += len(commands_in(text))
        elif block.language == "output":
            assert any(is_shown(text, one) for one in said), f"{page} shows\n{text}\nbut this is printed:\n{said[1]}"
    return commands


def run_lines(commands: list[str], tmp_path: Path, **env: str) -> tuple[str, str]:
    """Run commands as a reader of the guide does, in a folder with the launcher; return their output, without and with
    stderr."""
    (tmp_path / "shoal").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m shoal "$@"\n')
    (tmp_path / "shoal").chmod(0o755)
    done = [_run_line(command, tmp_path, **env) for command in commands]
    out, err = "".join(one.stdout for one in done), "".join(one.stderr for one in done)
    return out, err + out


def _run_line(command: str, tmp_path: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    if command.startswith("./shoal ") and not FOR_THE_SHELL & set(command):
        words, how = shlex.split(command)[1:], clean_environment(tmp_path) | env
        done = run_shoal(*words, cwd=tmp_path, env=how, timeout=DEADLINE_SECONDS)
        assert done.returncode == 0, done.stderr
        return done
    return run_to_the_end(["sh", "-c", command], tmp_path, **env)


def run_rest_api(site: Site, fleet: Fleet, tmp_path: Path, **env: str) -> str:
    """Run the requests of the guide on the REST API as one script."""
    script = "".join(blocks("rest-api.md", "sh")).replace(EXAMPLE, site.address)
    return run(["sh", "-eu", "-c", script.replace("127.0.0.1:8700", f"127.0.0.1:{fleet.port}")], tmp_path, **env)


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
    assert run_commands("extract-data.md", site, tmp_path) == 7
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
    assert run_commands("export-pages.md", site, tmp_path) == 6
    made = {"pages.parquet", "site.warc.gz", "site.cdxj", "site.md", "shelf.parquet", "broken.csv"}
    assert made <= {path.name for path in tmp_path.iterdir()}


def test_the_guide_to_moving_a_crawl_works_as_written(site: Site, tmp_path: Path) -> None:
    assert run_commands("move-a-crawl.md", site, tmp_path) == 3


@of_two_pages
def test_the_commands_of_the_guide_on_the_command_line_work(site: Site, tmp_path: Path) -> None:
    assert run_commands("command-line.md", site, tmp_path) == 10


@of_two_pages
def test_the_commands_and_requests_of_the_page_for_agents_work(site: Site, sqlite_url: str, tmp_path: Path) -> None:
    commands, requests = (text.replace(EXAMPLE, site.address) for text in blocks("../../SKILL.md", "sh"))
    run_lines(commands.splitlines(), tmp_path)
    assert len((tmp_path / "pages.jsonl").read_text().splitlines()) == 2
    assert json.loads((tmp_path / "audit.json").read_text())["state"] == "success"
    with Fleet(tmp_path, sqlite_url) as fleet:
        fleet.controller(workers=1)
        run(["sh", "-eu", "-c", requests.replace("127.0.0.1:8700", f"127.0.0.1:{fleet.port}")], tmp_path)
    assert "event: end" in (tmp_path / "events.txt").read_text()
    assert len(json.loads((tmp_path / "page-1.json").read_text())["items"]) == 2


def test_the_command_of_the_guide_on_normalizing_urls_works(site: Site, tmp_path: Path) -> None:
    assert run_commands("normalize-urls.md", site, tmp_path) == 1


def test_the_commands_of_the_guide_on_robots_work(site: Site, tmp_path: Path) -> None:
    assert run_commands("robots-and-sitemaps.md", site, tmp_path) >= 1


def test_the_commands_of_the_guide_on_single_pages_work(site: Site, tmp_path: Path) -> None:
    assert run_commands("fetch-a-page.md", site, tmp_path) == 3
    assert "links.jsonl" in {path.name for path in tmp_path.iterdir()}


PROGRAMS = [*blocks("python-library.md", "python"), *blocks("fetch-a-page.md", "python")]


@pytest.mark.parametrize("place", range(len(PROGRAMS)))
def test_the_programs_of_the_guides_on_the_library_work(site: Site, tmp_path: Path, place: int) -> None:
    program = PROGRAMS[place].replace(EXAMPLE, site.address)
    assert run([sys.executable, "-W", "error", "-c", program], tmp_path)


def test_the_commands_of_the_guide_on_jobs_work(site: Site, tmp_path: Path) -> None:
    assert run_commands("jobs.md", site, tmp_path) == 10


def test_the_commands_of_the_guide_on_tokens_work(site: Site, tmp_path: Path) -> None:
    assert run_commands("api-tokens.md", site, tmp_path) == 4


@of_two_pages
def test_the_commands_of_the_guide_on_the_rest_api_work(site: Site, sqlite_url: str, tmp_path: Path) -> None:
    with Fleet(tmp_path, sqlite_url) as fleet:
        fleet.controller(workers=1)
        assert "event: end" in run_rest_api(site, fleet, tmp_path)
    assert len(json.loads((tmp_path / "pages.json").read_text())["items"]) >= 2


def test_the_gate_and_the_commands_of_the_guide_on_audits_work(site: Site, tmp_path: Path) -> None:
    [gate] = blocks("audit-a-site.md", "toml")
    assert len(parse_gate(gate, "gate.toml").rules) == 3
    assert run_commands("audit-a-site.md", site, tmp_path) == 2


@pytest.mark.parametrize("site", [9], indirect=True)
def test_the_pause_of_the_crawl_guide_leaves_pages_for_the_resume(site: Site, tmp_path: Path) -> None:
    [block] = [text for text in blocks("crawl-a-site.md", "sh") if "--resume" in text]
    pause, resume = block.replace(EXAMPLE, site.address).splitlines()
    run_lines([pause], tmp_path)
    fetched = site.pages_answered
    assert 0 < fetched < 9
    run_lines([resume], tmp_path)
    assert len((tmp_path / "fish.jsonl").read_text().splitlines()) == 9


def test_no_runnable_block_has_a_placeholder() -> None:
    placeholder = re.compile(r"(?<![\w$\"'-])(?:ID|EARLIER|LATER|NAME|URL|TOKEN|FILE)(?![\w=\"'])|\u2026|\.internal")
    found = {
        (page.name, line)
        for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        for block in blocks_of(page)
        for line in block.text.splitlines()
        if block.language == "sh" and placeholder.search(line)
    }
    assert found == set()


class OneHome:
    """A reader who works through the guides, and starts what each of them says to start."""

    def __init__(self, site: Site, fleet: Fleet, folder: Path) -> None:
        self._site = site
        self._fleet = fleet
        self._folder = folder
        self._allowed = {"SHOAL_ALLOW_NETWORKS": "127.0.0.0/8"}

    def work_through(self, page: str) -> int:
        """Return how many commands the guide has."""
        match page:
            case "install.md":  # it needs a clone: tests/acceptance/test_first_steps.py
                return 0
            case "render-pages.md":
                return self._with_a_renderer()
            case "page-jobs.md":
                with self._running(self._fleet.worker()):
                    return self._run(page)
            case "bots.md":
                with self._running(self._fleet.controller()):
                    commands = self._run(page)
                    self._let_the_bot_fetch_a_page()
                    return commands
            case "rest-api.md":
                with self._running(self._fleet.controller(workers=1)):
                    assert "event: end" in run_rest_api(
                        self._site, self._fleet, self._folder, SHOAL_TOKEN=self._token("admin")
                    )
                return len(blocks(page, "sh"))
        return self._run(page)

    def _run(self, page: str, **env: str) -> int:
        return run_commands(page, self._site, self._folder, **self._allowed, **env)

    def _with_a_renderer(self) -> int:
        port = free_port()
        renderer = self._fleet.command("renderer", "renderer", "--listen", f"127.0.0.1:{port}")
        with self._running(renderer):
            wait_for(lambda: "listening" in renderer.said(), "a render service")
            known = {"RENDERER_URL": f"http://127.0.0.1:{port}", "SHOAL_RENDERER_TOKEN": RENDERER_TOKEN}
            commands = self._run("render-pages.md", **known)
        assert json.loads((self._folder / "rendered.json").read_text())["page"]["screenshot"]
        return commands

    def _let_the_bot_fetch_a_page(self) -> None:
        [program] = blocks("bots.md", "python")
        (self._folder / "bot.py").write_text(program)
        server = {"SHOAL_SERVER": f"http://127.0.0.1:{self._fleet.port}", "SHOAL_TOKEN": self._token("bot")}
        env = clean_environment(self._folder) | self._allowed | server | {"PYTHONPATH": str(ROOT / "src")}
        before = self._fetched()
        with subprocess.Popen([sys.executable, "bot.py"], cwd=self._folder, env=env) as bot:
            try:
                wait_for(lambda: self._fetched() > before or bot.poll() is not None, "a page for the bot")
            finally:
                bot.terminate()
        assert bot.returncode == 0

    def _fetched(self) -> int:
        return sum(visit.path == path_of(0) for visit in list(self._site.visits))

    def _token(self, role: str) -> str:
        said = run(["./shoal", "tokens", "create", "--role", role, "--name", "reader"], self._folder)
        [token] = re.findall(r"shl_\w+", said)
        return str(token)

    @contextmanager
    def _running(self, process: Shoal) -> Iterator[None]:
        yield
        process.send(signal.SIGTERM)
        assert process.wait() == 0


def test_the_recipes_work_one_after_another_in_one_home(site: Site, tmp_path: Path) -> None:
    assert Reader.in_folder(tmp_path, site.address).read(ROOT / "docs" / "recipes.md") > 60


def test_all_other_pages_work_one_after_another_in_one_home(site: Site, tmp_path: Path) -> None:
    """In the order of the site."""
    pages = [name for name in pages_of_the_site() if not name.startswith("guides/") and name != "recipes.md"]
    reader = Reader.in_folder(tmp_path, site.address)
    counts = {name: reader.read(ROOT / "docs" / name) for name in pages}
    assert {"start/tutorial.md", "troubleshooting.md", "coming-from/scrapyd.md"} <= {n for n in counts if counts[n] > 4}


def pages_of_the_site() -> list[str]:
    """Return the pages below `docs/` in the order of the navigation."""
    names = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    return [name for name in names if (ROOT / "docs" / name).exists()]


def test_the_guides_work_one_after_another_in_one_home(site: Site, chromium: str, tmp_path: Path) -> None:
    """In the order of the site."""
    pages = [name.partition("/")[2] for name in pages_of_the_site() if name.startswith("guides/")]
    pages.remove("install.md")  # needs a clone of its own: see test_first_steps.py
    [rules, *_] = [text for text in blocks("extract-data.md", "toml") if "fields" in text]
    (tmp_path / "rules.toml").write_text(rules)
    (tmp_path / "urls.txt").write_text(f"{site.url(0)}\n")
    settings = {"SHOAL_PAGE_SPEED": "max", "SHOAL_OPEN_PROBES": "true", "SHOAL_CHROMIUM": chromium}
    store = f"sqlite:///{tmp_path}/.local/share/shoal/shoal.db"
    with Fleet(tmp_path, store, SHOAL_RENDERER_TOKEN=RENDERER_TOKEN, **settings) as fleet:
        reader = OneHome(site, fleet, tmp_path)
        counts = {page: reader.work_through(page) for page in pages}
    assert {"page-jobs.md", "bots.md", "rest-api.md", "render-pages.md"} <= counts.keys()
    assert sum(counts.values()) > 50
