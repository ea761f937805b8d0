"""Contract of commit statuses: what an analysis says reaches its forge, in order, whatever dies or refuses."""

import json
from collections.abc import Iterator
from dataclasses import replace
from html import escape
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest

from shoal.audit.analysis import CommitState, status_of
from shoal.audit.commit_status import (
    TAKEN_FOR,
    CommitStatusFailed,
    CommitStatusPublished,
    CommitStatusPublisher,
    Forge,
    without_token,
)
from shoal.audit.gate import read_gate
from shoal.audit.states import AnalysisState
from shoal.audit.store import CommitStatusStore
from shoal.base.clock import SystemClock
from shoal.base.errors import InvalidInput
from shoal.base.forge_commit import ForgeCommit
from shoal.base.url import Url
from shoal.crawl.crawl import CrawlConfig
from shoal.egress import AddressRule, Egress, endpoint
from shoal.events.webhook import WAITS
from shoal.observe.log_messages import log_line
from shoal.queue.states import JobState
from shoal.work.worker_context import WorkerContext
from tests.contract.conftest import Bench
from tests.contract.test_analyses import KIND, attempt, completed, only, try_and_fail
from tests.support.forge_server import TOKEN, ForgeServer, forge_server

SHA = "a" * 40
CONTEXT = "shoal/audit"


@pytest.fixture
def forge() -> Iterator[ForgeServer]:
    with forge_server() as server:
        yield server


def commit(forge: str = "github", **more: Any) -> dict[str, Any]:
    return {"forge": forge, "repo": "acme/shop", "sha": SHA, **more}


class NoWait(SystemClock):
    """A clock for waits that a test does not want."""

    async def sleep(self, seconds: float) -> None:
        return


def publisher(bench: Bench, server: ForgeServer, token: str = TOKEN, url: str = "") -> CommitStatusPublisher:
    kinds = {"github": "github", "gitlab": "gitlab", "gitea": "gitea", "forgejo": "gitea"}
    forges = {name: Forge(kind, server.api(kind), token, f"SHOAL_{kind.upper()}") for name, kind in kinds.items()}
    rule = AddressRule(named=frozenset({endpoint(Url(server.api("github")))}))
    CommitStatusStore()
    return CommitStatusPublisher(bench.database, forges, lambda: Egress(rule), NoWait(), bench.signals, url)


async def analyzed(bench: Bench, send: CommitStatusPublisher, **config: Any) -> str:
    """Run an analysis with a publisher beside it; return its id."""
    await completed(bench, **config)
    run = attempt(bench, await bench.lease(kind=KIND))
    load = run._context.loader.load

    async def load_after_publishing(*wanted: Any) -> Any:
        await send.run_once()
        return await load(*wanted)

    run._context.loader.load = load_after_publishing  # type: ignore[method-assign]
    await run.run()
    await send.run_once()
    await send.close()
    return (await only(bench)).id


@pytest.mark.parametrize(
    ("name", "speaks", "states"),
    [
        ("github", "github", ["pending", "success"]),
        ("gitlab", "gitlab", ["running", "success"]),
        ("gitea", "gitea", ["pending", "success"]),
        ("forgejo", "gitea", ["pending", "success"]),
    ],
)
async def test_every_forge_shows_pending_and_then_the_verdict(
    bench: Bench, forge: ForgeServer, name: str, speaks: str, states: list[str]
) -> None:
    analysis_id = await analyzed(
        bench, publisher(bench, forge, url="https://shoal.example"), commit=commit(name, context="site")
    )
    assert forge.states(speaks, "acme/shop", SHA, "site") == states
    last = forge.statuses[speaks, "acme/shop", SHA, "site"][-1]
    assert last["target_url"] == f"https://shoal.example/api/v1/analyses/{analysis_id}/report"
    assert last["description"].endswith("1 page")
    status = await bench.analyses.commit_status(analysis_id)
    assert status is not None
    assert (status.shown, status.is_due, status.error) == (CommitState.SUCCESS, False, None)


@pytest.mark.parametrize(
    ("rules", "state", "words"),
    [
        ({"rules": [{"metric": "pages", "op": ">=", "threshold": 1}]}, "success", "Gate passed: "),
        ({"rules": [{"metric": "pages", "op": "<", "threshold": 1}]}, "failure", "Gate failed: pages is 1; "),
        ({"fail": ["server_error"], "min_pages": 99}, "error", "Gate inconclusive: The crawl has 1 pages"),
    ],
)
async def test_the_gate_decides_the_state(
    bench: Bench, forge: ForgeServer, rules: dict[str, Any], state: str, words: str
) -> None:
    await bench.app.audit.gates.put("release", read_gate(rules))
    await analyzed(bench, publisher(bench, forge), gate="release", commit=commit())
    shown = forge.statuses["github", "acme/shop", SHA, CONTEXT][-1]
    assert (shown["state"], shown["description"][: len(words)]) == (state, words)
    assert (await only(bench)).state is AnalysisState.SUCCESS


async def test_an_analysis_that_failed_after_its_last_attempt_is_a_failure(bench: Bench, forge: ForgeServer) -> None:
    await completed(bench, commit=commit())
    send = publisher(bench, forge)
    assert await try_and_fail(bench) is JobState.PENDING
    await send.run_once()
    assert forge.states("github", "acme/shop", SHA, CONTEXT) == ["pending"]  # the retry is invisible
    await bench.jump(10)
    assert await try_and_fail(bench) is JobState.FAILED
    await send.run_once()
    assert forge.states("github", "acme/shop", SHA, CONTEXT) == ["pending", "failure"]


async def test_every_log_line_of_an_attempt_names_the_analysis_and_the_attempt(
    bench: Bench, forge: ForgeServer
) -> None:
    forge.answers = [(500, "", {})]
    await completed(bench, commit=commit())
    send = publisher(bench, forge)
    assert await try_and_fail(bench) is JobState.PENDING
    await send.run_once()
    await bench.jump(10)
    await bench.lease("w1/5", kind=KIND)
    await bench.lose()
    await bench.lease("w1/6", kind=KIND)
    await bench.queue.recovery.recover("w1/6")
    lost = await bench.lease(kind=KIND)
    worker: Any = SimpleNamespace(node_id="w1", signals=bench.signals)
    WorkerContext.report_lost(worker, 1, lost, "died")
    await bench.queue.recovery.lose(lost, "its child died")
    assert await try_and_fail(bench) is JobState.FAILED
    await send.run_once()
    analysis_id = (await only(bench)).id
    lines = [log_line(one) for one in bench.signals_seen]
    told = [line for line in lines if line.facts.get("kind") == KIND and line.event != "job_enqueued"]
    assert {line.event for line in told} == {
        *("job_leased", "job_moved", "analysis_attempted", "analysis_moved", "child_lost"),
        *("commit_status_wanted", "commit_status_published", "commit_status_failed"),
    }
    first = next(place for place, line in enumerate(told) if line.facts.get("attempt") == 2)
    for place, line in enumerate(told):
        about = {name: line.facts.get(name) for name in ("analysis_id", "correlation_id", "attempt", "max_attempts")}
        assert list(about.values()) == [analysis_id, analysis_id, 1 if place < first else 2, 2], line


async def test_a_refused_publication_is_tried_again_and_fails_nothing(bench: Bench, forge: ForgeServer) -> None:
    forge.answers = [(500, f"oops {TOKEN}", {}), (429, "", {"Retry-After": "90"})]
    told: list[Any] = []
    bench.signals.subscribe(told.append)
    analysis_id = await analyzed(bench, publisher(bench, forge), commit=commit())
    assert (await only(bench)).state is AnalysisState.SUCCESS
    failures = [one for one in told if isinstance(one, CommitStatusFailed)]
    assert [failure.state for failure in failures] == ["pending", "success"]  # the newest wanted status is due at once
    assert "500" in failures[0].error
    assert TOKEN not in failures[0].error
    assert failures[1].again_in_seconds == 90
    other = publisher(bench, forge)  # of a process that started later
    await other.run_once()
    assert forge.states("github", "acme/shop", SHA, CONTEXT) == []
    await bench.jump(91)
    await other.run_once()
    assert forge.states("github", "acme/shop", SHA, CONTEXT) == ["success"]
    assert [one.run_id for one in told if isinstance(one, CommitStatusPublished)] == [analysis_id]
    await other.run_once()
    assert forge.requests == 3


async def test_a_publisher_that_died_while_sending_leaves_the_status_to_another(
    bench: Bench, forge: ForgeServer
) -> None:
    await completed(bench, commit=commit("gitlab"))
    await attempt(bench, await bench.lease(kind=KIND)).run()
    store = CommitStatusStore()
    [taken] = await bench.database.run(lambda tx: store.take(tx, 10, TAKEN_FOR))
    await publisher(bench, forge)._send(taken)  # and dies before it can record that
    await publisher(bench, forge).run_once()
    assert forge.requests == 1  # it is still taken
    await bench.jump(TAKEN_FOR.total_seconds() + 1)
    await publisher(bench, forge).run_once()
    assert forge.requests == 2
    assert forge.states("gitlab", "acme/shop", SHA, CONTEXT) == ["success"]
    status = await bench.analyses.commit_status((await only(bench)).id)
    assert status is not None
    assert (status.shown, status.is_due) == (CommitState.SUCCESS, False)


async def test_a_verdict_that_comes_while_pending_is_sent_is_published_after_it(
    bench: Bench, forge: ForgeServer
) -> None:
    await completed(bench, commit=commit())
    lease = await bench.lease(kind=KIND)
    analysis = await only(bench)
    await bench.database.run(lambda tx: bench.analyses.started(tx, analysis.id))
    store = CommitStatusStore()
    [taken] = await bench.database.run(lambda tx: store.take(tx, 10, TAKEN_FOR))
    await bench.queue.finish(lease)
    send = publisher(bench, forge)
    await send.run_once()
    assert forge.requests == 0  # otherwise the forge could show pending for ever
    await send._publish(taken)
    await send.run_once()
    assert forge.states("github", "acme/shop", SHA, CONTEXT) == ["pending", "success"]


async def test_a_missing_setting_is_named_and_the_status_is_given_up_after_a_day(
    bench: Bench, forge: ForgeServer
) -> None:
    analysis_id = await analyzed(bench, publisher(bench, forge, token=""), commit=commit("forgejo"))
    for _ in range(len(WAITS) + 1):
        await bench.jump(9 * 3600)
        await publisher(bench, forge, token="").run_once()
    status = await bench.analyses.commit_status(analysis_id)
    assert status is not None
    assert (status.error, status.is_due) == ("SHOAL_GITEA_TOKEN is not set", False)
    assert forge.requests == 0


async def test_a_process_that_ends_tries_a_few_times_at_once(bench: Bench, forge: ForgeServer) -> None:
    await completed(bench, commit=commit())
    await attempt(bench, await bench.lease(kind=KIND)).run()
    forge.answers = [(503, "", {}), (503, "", {})]
    assert await publisher(bench, forge).finish((await only(bench)).id) is None
    assert forge.states("github", "acme/shop", SHA, CONTEXT) == ["success"]
    assert await publisher(bench, forge).finish((await only(bench)).id) is None
    assert forge.requests == 3


async def test_an_analysis_without_a_commit_publishes_nothing(bench: Bench, forge: ForgeServer) -> None:
    analysis_id = await analyzed(bench, publisher(bench, forge))
    assert await bench.analyses.commit_status(analysis_id) is None
    assert forge.requests == 0


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"forge": "bitbucket"}, "forge"),
        ({"repo": "shop"}, "repo"),
        ({"repo": "../shop"}, "only dots"),
        ({"sha": "abc"}, "sha"),
        ({"sha": SHA.upper()}, "sha"),
        ({"context": ""}, "context"),
        ({"url": "javascript:1"}, "http or https"),
        ({"branch": "main"}, "branch"),
    ],
)
def test_a_commit_that_cannot_be_published_to_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        ForgeCommit.read({**commit(), **changes})
    with pytest.raises(InvalidInput, match="commit"):
        CrawlConfig.read({"seeds": ["https://example.com/"], "commit": {**commit(), **changes}})


async def test_descriptions_are_short_and_on_one_line(bench: Bench) -> None:
    await completed(bench)
    failed = replace(await only(bench), state=AnalysisState.FAILED, error="x\n" * 200)
    state, text = status_of(failed)
    assert (state, len(text)) == (CommitState.FAILURE, 140)
    assert "\n" not in text


async def test_a_token_across_the_end_of_a_long_response_is_hidden_in_the_stored_error(
    bench: Bench, forge: ForgeServer
) -> None:
    forge.answers = [(500, "x" * (300 - len(TOKEN) // 2) + TOKEN + "y" * 1_000, {})] * 2
    analysis_id = await analyzed(bench, publisher(bench, forge), commit=commit())
    status = await bench.analyses.commit_status(analysis_id)
    assert status is not None
    assert status.error is not None
    assert status.error.startswith("the forge answered 500: xxx")
    assert "x***y" in status.error
    assert TOKEN[:8] not in status.error


def test_a_token_in_a_response_is_hidden_however_it_is_written() -> None:
    token = 'glpat-a"b/c<d&é'
    as_json = json.dumps(token)
    for written in (token, as_json, as_json.replace("/", "\\/"), escape(token), quote(token, safe="")):
        said = without_token(written, token)
        assert "glpat" not in said
        assert "***" in said
