"""The jobs, leases and results of bots, and statistics about bots."""

from typing import Annotated, Any, ClassVar, Self

from msgspec import UNSET, UnsetType

from shoal.base.errors import LeaseLost
from shoal.base.request_form import describe
from shoal.page_jobs.leasing import PageTask
from shoal.page_jobs.result import Receipt
from shoal.serve.resources.group import RULE_SET
from shoal.serve.resources.resource import Moment, Resource


class BotConfig(Resource, kw_only=True):
    headers: Annotated[dict[str, str], describe("Headers to send.")]
    js_required: Annotated[bool, describe("Whether the page needs a browser.")]
    timeout_hint: Annotated[float | None, describe("Timeout for the request in seconds, if one was set.")]
    proxy: Annotated[str | None, describe("Label of the proxy to use.")]


class BotLease(Resource, kw_only=True):
    epoch: Annotated[int, describe("Epoch of the lease; send it with every heartbeat and with the result.")]
    ttl_seconds: Annotated[float, describe("Seconds until the lease expires, unless a heartbeat renews it.")]


class BotJob(Resource, kw_only=True):
    """A page that the bot shall fetch."""

    job_id: str
    url: Annotated[str, describe("URL to fetch.")]
    priority: int
    crawl_config: Annotated[BotConfig, describe("Fetch options.")]
    rule_set: Annotated[dict[str, Any] | None, describe("Data to extract from the page.")]
    lease: Annotated[BotLease, describe("The lease of the job.")]

    example: ClassVar = {
        "job_id": "job_01hr2v8k3m4n5p6q",
        "url": "https://example.com/a",
        "priority": 50,
        "crawl_config": {"headers": {}, "js_required": False, "timeout_hint": None, "proxy": None},
        "rule_set": RULE_SET,
        "lease": {"epoch": 1, "ttl_seconds": 600.0},
    }

    @classmethod
    def of(cls, task: PageTask) -> Self:
        """Build the resource from a task, without its policy, project and labels."""
        work, lease = task.work, task.lease
        assert work is not None, "tasks that cannot be read are returned to their lane"
        return cls(
            job_id=lease.fence.job_id,
            url=work.url,
            priority=lease.priority,
            crawl_config=BotConfig.of(work.crawl_config),
            rule_set=work.rule_set,
            lease=BotLease.of(lease.fence, lease),
        )


class PulledJobs(Resource, kw_only=True):
    jobs: Annotated[list[BotJob], describe("The leased jobs; empty if none is due.")]

    example: ClassVar = {"jobs": [BotJob.example]}


class Heartbeat(Resource, kw_only=True):
    ttl_seconds: Annotated[float, describe("Seconds until the lease expires, unless the next heartbeat renews it.")]
    cancelled: Annotated[bool, describe("If true, stop working on the job: its result will be rejected.")]


class Pushed(Resource, kw_only=True):
    job_id: str
    state: Annotated[str, describe("State of the job: DONE, FAILED, or PENDING if it will be retried.")]

    @classmethod
    def of(cls, receipt: Receipt) -> Self:
        assert receipt.state is not None
        return cls(job_id=receipt.fence.job_id, state=receipt.state.value.upper())


class PushedItem(Resource, kw_only=True, omit_defaults=True):
    job_id: str
    status: Annotated[int, describe("HTTP status of this result: 200 or 409.")]
    state: Annotated[str | UnsetType, describe("State of the job, if the result was accepted.")] = UNSET
    code: Annotated[str | UnsetType, describe("`lease_lost` if the result was rejected.")] = UNSET
    detail: Annotated[str | UnsetType, describe("Why the result was rejected.")] = UNSET

    @classmethod
    def of(cls, receipt: Receipt) -> Self:
        job_id = receipt.fence.job_id
        if receipt.state is not None:
            return cls(job_id=job_id, status=200, state=receipt.state.value.upper())
        lost = LeaseLost(job_id, receipt.fence.epoch)
        return cls(job_id=job_id, status=lost.response.http_status, code=lost.code, detail=lost.message)


class PushedBatch(Resource, kw_only=True):
    results: Annotated[list[PushedItem], describe("The outcome of each result, in the order of the request.")]


class BotSeen(Resource, kw_only=True):
    """A bot that sent requests, with numbers that the server counted."""

    token: Annotated[str, describe("Id of the bot's token.")]
    bot_id: Annotated[str, describe("Name that the bot sent with its requests.")]
    pulled: Annotated[int, describe("Number of jobs that the bot received.")]
    results: Annotated[int, describe("Number of accepted results.")]
    failures: Annotated[int, describe("Number of accepted results that report a failure.")]
    invalid_data: Annotated[int, describe("Number of accepted results that lack a required field of their rule set.")]
    late_results: Annotated[int, describe("Number of results that were rejected because their lease was not valid.")]
    heartbeats: Annotated[int, describe("Number of heartbeats that renewed a lease.")]
    late_heartbeats: Annotated[
        int, describe("Number of heartbeats that were rejected because their lease was not valid.")
    ]
    lost_leases: Annotated[int, describe("Number of leases that expired without a result or a heartbeat.")]
    seen_at: Annotated[Moment, describe("Time of the bot's last request.")]
