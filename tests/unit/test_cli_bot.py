"""Error messages of `shoal bot`, and the output of `shoal policies results` and `diff`."""

import asyncio
import json
from typing import Any

import pytest

from shoal.app import opened
from shoal.base.ids import JobId
from shoal.base.settings_loader import load
from shoal.cli.main import main
from shoal.page_jobs.result import Result, ResultDelivery, Status
from shoal.queue.job import NewJob

pytestmark = pytest.mark.usefixtures("default_store")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["bot"], 2, "a bot needs a server"),
        (["bot", "verify"], 2, "a bot needs a server"),
        (["bot", "--server", "ftp://example.org"], 4, "--server"),
        (["bot", "--server", "http://127.0.0.1:1", "--concurrency", "0"], 2, "--concurrency"),
        (["bot", "--server", "http://127.0.0.1:1", "--capability", "telepathy"], 2, "telepathy"),
        (["bot", "verify", "--server", "http://127.0.0.1:1"], 8, "is not available"),
    ],
)
def test_a_bot_that_cannot_begin_says_why(
    words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == code
    assert says in capsys.readouterr().err


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


async def _run(policy_id: str, *prices: int) -> None:
    async with opened(load().settings) as app:
        for place, price in enumerate(prices):
            payload = json.dumps({"url": "https://example.com/", "policy": policy_id})
            await app.queue.enqueue([NewJob(JobId(f"job_{place}"), "page", None, payload)])
            [lease] = await app.queue.lease("w1", ["page"], ["shared"], 1)
            result = Result(Status.SUCCESS, "https://example.com/", 1, data={"price": price}, html_hash=f"h{price}")
            await app.page_jobs.ingest.settle("w1", [ResultDelivery(lease.fence, result)])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["https://example.com/", "ftp://a/", "--site"],
            "shoal: URL 'ftp://a/' has a scheme other than http and https",
        ),
        (["https://example.com/", "http://10.0.0.1/", "--site"], "shoal: http://10.0.0.1/ has an address or port"),
        (["ftp://a/"], "shoal: URL 'ftp://a/' has a scheme other than http and https"),
        (["https://example.com/", "--priority", "1000"], "shoal: --priority cannot be '1000'"),
        (["https://example.com/", "--set", "jitter=9x"], "shoal: jitter '9x' is a duration without a valid unit"),
    ],
)
def test_a_policy_is_refused_in_the_words_of_the_command(
    capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert main(["policies", "add", *words, "--frequency", "6h"]) == 2
    assert says in capsys.readouterr().err


def test_the_results_of_a_policy_and_their_changes_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    policy = told(capsys, "policies", "add", "https://example.com/", "--frequency", "6h")["id"]
    asyncio.run(_run(policy, 1, 2))
    assert [one["data"]["price"] for one in told(capsys, "policies", "results", policy)["items"]] == [2, 1]
    changes = told(capsys, "policies", "diff", policy)["changes"]
    assert changes == [{"path": "price", "from": 1, "to": 2}]
    assert main(["policies", "diff", policy, "job_1", "job_0"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[1].split() == ["price", "2", "1"]
    assert "The page changed" in said.err
    assert main(["policies", "results", policy]) == 0
    assert "job_1" in capsys.readouterr().out
    assert main(["policies", "diff", "pol_x"]) == 5
