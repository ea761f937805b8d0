"""`shoal jobs` and `shoal explain job`: lists, history, retry, cancel, purge and quotas from the command line."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from shoal.app import App, opened
from shoal.base.ids import JobId
from shoal.base.settings_loader import load
from shoal.cli import job_groups
from shoal.cli.main import main
from shoal.queue.job import Lease, NewJob
from shoal.queue.states import JobState


@pytest.fixture(autouse=True)
def _a_few_jobs(default_store: None) -> None:
    """One failed, one waits, one is leased."""
    asyncio.run(_prepare())


async def _prepare() -> None:
    async with opened(load().settings) as app:
        for number, name in enumerate(("job_failed", "job_leased", "job_waits")):
            payload = json.dumps({"url": f"https://example.com/{number}"})
            await app.queue.enqueue([NewJob(JobId(name), "page", None, payload, max_attempts=1)])
        failed, _ = await app.queue.lease("node-a/1", ["page"], ["shared"], 2)
        await app.queue.fail(failed, "connect: refused")


async def _leased(app: App, job_id: str) -> Lease:
    """Lease a job, or return the lease that it has."""
    held = {lease.fence.job_id: lease for lease in await app.queue.held_by("node-a/2")}
    lease = held.get(JobId(job_id)) or await app.queue.lease_one(JobId(job_id), "node-a/2")
    assert lease is not None
    return lease


async def _with_app(work: Any) -> Any:
    async with opened(load().settings) as app:
        return await work(app)


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """Run a command with `--json` and return its output."""
    assert main(["jobs", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_jobs_are_listed_newest_first_with_what_they_are_about(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "ls"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["ID", "KIND", "STATE", "ATTEMPTS", "PRIORITY", "CREATED", "ABOUT"]
    assert [row.split()[0] for row in rows] == ["job_waits", "job_leased", "job_failed"]
    assert rows[0].endswith("https://example.com/2")
    attempts = [re.search(r"\d/1", row) for row in rows]
    assert [found and found[0] for found in attempts] == ["0/1", "1/1", "1/1"]
    assert "failed (its last attempt failed)" in rows[2]


def test_a_job_that_ran_and_then_expired_or_was_cancelled_shows_its_attempt_and_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def lose_and_cancel(app: App) -> None:
        await app.queue.enqueue([NewJob(JobId("job_poison"), "page", None), NewJob(JobId("job_killed"), "page", None)])
        for name in ("job_poison", "job_killed"):
            await _leased(app, name)
        await app.job_admin.cancel("job_killed")
        while (
            await app.queue.recovery.lose(lease := await _leased(app, "job_poison"), "its child died")
            is JobState.PENDING
        ):
            assert lease.crash_count < 10
        await app.job_admin.cancel("job_waits")

    asyncio.run(_with_app(lose_and_cancel))
    assert main(["jobs", "ls"]) == 0
    rows = {row.split()[0]: row for row in capsys.readouterr().out.splitlines()}
    assert re.search(r"expired \(its workers were lost too often\) +1/2 ", rows["job_poison"])
    assert re.search(r"cancelled \(on request\) +1/2 ", rows["job_killed"])
    assert re.search(r"cancelled \(on request\) +0/1 ", rows["job_waits"])


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("max_pages", "the page limit was reached"),
        ("replaced", "replaced by a newer one"),
        ("http_status", "the server answered with an error status"),
    ],
)
def test_the_reason_of_a_run_or_a_page_is_shown_in_words(
    capsys: pytest.CaptureFixture[str], reason: str, words: str
) -> None:
    async def finish(app: App) -> None:
        [lease] = await app.queue.held_by("node-a/1")
        await app.queue.finish(lease, reason)

    asyncio.run(_with_app(finish))
    assert main(["jobs", "ls", "--state", "done"]) == 0
    assert f"done ({words})" in capsys.readouterr().out
    assert main(["jobs", "show", "job_leased"]) == 0
    assert words in capsys.readouterr().out
    assert main(["explain", "job", "job_leased"]) == 0
    assert f" in the state done ({words})." in capsys.readouterr().out


def test_a_list_goes_on_after_its_last_job(capsys: pytest.CaptureFixture[str]) -> None:
    first = told(capsys, "ls", "--limit", "2")
    rest = told(capsys, "ls", "--limit", "2", "--cursor", first["next"])
    assert [job["id"] for job in first["items"] + rest["items"]] == ["job_waits", "job_leased", "job_failed"]
    assert rest["next"] is None


def test_dead_letters_are_listed_and_retried(capsys: pytest.CaptureFixture[str]) -> None:
    assert [job["id"] for job in told(capsys, "ls", "--dead")["items"]] == ["job_failed"]
    assert told(capsys, "retry", "--dead", "--kind", "page") == {"retried": 1}
    assert told(capsys, "ls", "--dead")["items"] == []


def test_one_job_is_retried_by_its_id(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "retry", "job_failed")["state"] == "pending"
    assert main(["jobs", "retry", "job_failed"]) == 7
    assert "pending" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["job_failed", "--dead"]])
def test_retry_takes_one_job_or_all_dead_letters(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main(["jobs", "retry", *words]) == 2
    assert "pass one of them" in capsys.readouterr().err


def test_the_history_of_a_job_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    shown = told(capsys, "show", "job_failed")
    [grant] = shown["history"]
    assert (grant["holder"], grant["ended"], grant["error"]) == ("node-a/1", "failed", "connect: refused")
    assert main(["jobs", "show", "job_leased"]) == 0
    assert "node-a/1" in capsys.readouterr().out


def test_a_job_is_cancelled(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "cancel", "job_waits")["state"] == "cancelled"
    assert main(["jobs", "cancel", "job_failed"]) == 7


def test_a_purge_names_a_state_and_removes_ended_jobs_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "purge"]) == 2
    assert main(["jobs", "purge", "--state", "locked"]) == 2
    assert main(["jobs", "purge", "--dead", "--older-than", "soon"]) == 2
    capsys.readouterr()
    assert told(capsys, "purge", "--dead", "--older-than", "1d") == {"purged": 0}
    assert told(capsys, "purge", "--dead") == {"purged": 1}


def test_quotas_are_set_listed_and_removed(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "quota", "set", "project:acme", "5")["most"] == 5
    assert [one["scope"] for one in told(capsys, "quota", "ls")["items"]] == ["project:acme"]
    assert told(capsys, "quota", "rm", "project:acme")["removed"]
    assert main(["jobs", "quota", "rm", "project:acme"]) == 5
    assert main(["jobs", "quota", "set", "acme", "5"]) == 2
    assert "project:NAME" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("job_id", "reason"), [("job_waits", "in_line"), ("job_leased", "worked_on"), ("job_failed", "attempts_exhausted")]
)
def test_explain_says_why_a_job_is_where_it_is(capsys: pytest.CaptureFixture[str], job_id: str, reason: str) -> None:
    assert main(["explain", "job", job_id, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["job_id"], said["reason"]) == (job_id, reason)
    assert main(["explain", "job", job_id]) == 0
    seconds = re.compile(r"\d+ s\b")  # a lease runs down between the two
    assert seconds.sub("N s", said["explanation"]) in seconds.sub("N s", capsys.readouterr().out)


@pytest.mark.parametrize("words", [["jobs", "show"], ["jobs", "cancel"], ["jobs", "retry"], ["explain", "job"]])
def test_a_job_that_does_not_exist_is_reported(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main([*words, "job_no"]) == 5
    said = capsys.readouterr().err
    assert said.startswith('shoal: job "job_no" does not exist in SQLite store ')
    assert said.endswith("; list them with `shoal jobs ls`.\n")


def test_the_list_that_is_advised_is_that_of_the_store_that_was_searched(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/other.db"
    assert main(["db", "upgrade", "--store", store]) == 0
    for words in (["jobs", "show"], ["crawls", "show"]):
        assert main([*words, "none", "--store", store]) == 5
        assert f"other.db; list them with `shoal {words[0]} ls --store {store}`." in capsys.readouterr().err


def test_a_retried_job_can_be_leased(capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "retry", "job_failed")

    async def lease(app: App) -> list[str]:
        leases = await app.queue.lease("w", ["page"], ["shared"], 5)
        return [one.fence.job_id for one in leases]

    assert sorted(asyncio.run(_with_app(lease))) == ["job_failed", "job_waits"]


def test_an_empty_list_is_a_sentence_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "ls", "--kind", "crawl"]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "No such jobs.\n")


def test_a_wait_without_a_worker_says_why_no_job_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_groups, "QUIET_SECONDS", 0.0)
    assert main(["jobs", "add", "https://example.com/", "--wait", "--wait-timeout", "2s"]) == 6
    assert "No job has started yet: It is next; " in capsys.readouterr().err
