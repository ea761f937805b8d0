"""`shoal crawls logs | watch | wait`: their output, and the exit code for each end of a crawl."""

import asyncio
import json
import re
from typing import Any

import pytest

from shoal.app import App, opened
from shoal.base.clock import FakeClock
from shoal.base.errors import BackendUnavailable
from shoal.base.ids import CrawlId
from shoal.base.settings_loader import load
from shoal.cli import crawls_follow
from shoal.cli.api_client import ApiClient
from shoal.cli.crawls_follow import RetryingApiClient
from shoal.cli.main import main
from shoal.crawl import states
from shoal.crawl.crawl import CrawlConfig
from shoal.crawl.states import CrawlMove


@pytest.fixture(autouse=True)
def _a_crawl(default_store: None) -> None:
    config = CrawlConfig(seeds=["https://one.test/"], sitemap="off")

    async def submit() -> None:
        async with opened(load().settings) as app:
            await app.crawls.submit(config, crawl_id=CrawlId("one"))

    asyncio.run(submit())


def move(*moves: CrawlMove) -> None:
    async def commit(app: App) -> None:
        for move in moves:
            assert await app.database.run(lambda tx, move=move: app.crawls.store.move(tx, "one", move))

    async def run() -> None:
        async with opened(load().settings) as app:
            await commit(app)

    asyncio.run(run())


@pytest.mark.parametrize("command", ["wait", "watch"])
@pytest.mark.parametrize(
    ("end", "code", "told"),
    [
        (states.complete("drained"), 0, ""),
        (states.complete("max_pages"), 0, ""),
        (states.complete("max_bytes"), 14, ""),
        (states.complete("max_seconds"), 15, ""),
        (states.fail("poison"), 1, ""),
        (states.fail("no_seed_gave_a_page"), 3, "no seed of crawl"),
        (states.stop(), 1, ""),
        (states.pause(), 11, "resume with `shoal crawls resume one`"),
    ],
)
def test_the_exit_code_says_how_a_crawl_ended(
    command: str, end: CrawlMove, code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    move(states.run(), end)
    assert main(["crawls", command, "one", "--json"]) == code
    captured = capsys.readouterr()
    assert json.loads(captured.out)["state"] == end.to.value
    assert told in captured.err


def test_a_wait_that_times_out_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("shoal.cli.crawls_follow.WORKER_SECONDS", 0.0)
    assert main(["crawls", "wait", "one", "--timeout", "200ms"]) == 6
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Waiting for a worker" in captured.err
    assert "crawl one did not end within 0.2 s" in captured.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["wait", "none"], 5, 'crawl "none" does not exist'),
        (["watch", "none"], 5, 'crawl "none" does not exist'),
        (["logs", "none"], 5, 'crawl "none" does not exist'),
        (["logs", "none", "-f"], 5, 'crawl "none" does not exist'),
        (["wait", "one", "--timeout", "soon"], 2, "--timeout 'soon' is not a duration"),
        (["logs", "one", "--lines", "0"], 2, "--lines"),
    ],
)
def test_a_crawl_that_cannot_be_followed_is_refused(
    words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["crawls", *words]) == code
    assert said in capsys.readouterr().err


def test_a_journal_is_read_as_lines_or_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crawls", "pause", "one"]) == 0
    capsys.readouterr()
    assert main(["crawls", "logs", "one"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("INFO", 1)[1].strip() for line in lines] == ["Waiting for a worker", "Paused (on request)"]
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ INFO ", line) for line in lines), lines
    assert main(["crawls", "logs", "one", "-n", "1", "--json"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    assert list(told)[:6] == ["timestamp", "level", "event", "msg", "crawl_id", "number"]
    assert (told["event"], told["reason"], told["crawl_id"]) == ("crawl_paused", "asked", "one")


def test_a_crawl_that_somebody_paused_is_reported_as_paused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crawls", "pause", "one"]) == 0
    assert main(["crawls", "wait", "one"]) == 11
    assert "crawl one is paused; resume with `shoal crawls resume one`." in capsys.readouterr().err


def test_who_follows_a_journal_is_let_go_when_the_crawl_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crawls", "stop", "one"]) == 0
    capsys.readouterr()
    assert main(["crawls", "logs", "one", "--follow"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("Stopped: 0 pages, 0 errors, 0 skipped (on request)")


class Flaky(ApiClient):
    """Answers, is unavailable for a number of requests, and answers again."""

    def __init__(self, *, away: range) -> None:
        self.asked = 0
        self._away = away

    async def get(self, path: str, **query: Any) -> Any:
        self.asked += 1
        if self.asked in self._away:
            raise BackendUnavailable("the server", "connection refused", "wait")
        return self.asked


class Quick(FakeClock):
    """Time passes as soon as somebody waits for it."""

    async def sleep(self, seconds: float) -> None:
        self.jump(seconds)


async def test_a_server_that_answered_before_is_retried(capsys: pytest.CaptureFixture[str]) -> None:
    steady = RetryingApiClient(Flaky(away=range(2, 50)), Quick())
    assert [await steady.get("/x") for _ in range(3)] == [1, 50, 51]
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("(connection refused); wait. Retrying for 60 s.")


async def test_a_server_that_never_answered_is_not_retried() -> None:
    flaky = Flaky(away=range(1, 2))
    with pytest.raises(BackendUnavailable):
        await RetryingApiClient(flaky, Quick()).get("/x")
    assert flaky.asked == 1


async def test_a_server_that_answered_before_is_given_up_after_a_minute() -> None:
    clock = Quick()
    steady = RetryingApiClient(Flaky(away=range(2, 1000)), clock)
    await steady.get("/x")
    with pytest.raises(BackendUnavailable):
        await steady.get("/x")
    assert 60 < clock.monotonic() < 62


@pytest.mark.parametrize("command", ["wait", "watch"])
def test_after_ctrl_c_the_command_says_that_the_crawl_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    async def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(crawls_follow, "_until_still", interrupted)
    assert main(["crawls", command, "one"]) == 130
    assert f"with `shoal crawls {command} one`." in capsys.readouterr().err
