"""The bot API: bots pull page jobs, send heartbeats and push results over HTTP. The rules are in `page_jobs.bots` and
`page_jobs.ingest`."""

from typing import Annotated, Any, Literal

import orjson
from msgspec import Meta, field

from shoal.access.token import TokenScope
from shoal.base.clock import Clock
from shoal.base.errors import InvalidInput, LeaseLost, RateLimited, TooLarge
from shoal.base.ids import JobId
from shoal.base.request_form import Form, describe, matching
from shoal.page_jobs.bots import Bots, Pull
from shoal.page_jobs.result import Result, ResultDelivery, Status
from shoal.queue.job import Fence
from shoal.serve.authentication import caller_of
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.expensive_reads import unless_gone
from shoal.serve.resources.bot import BotJob, Heartbeat, PulledJobs, Pushed, PushedBatch, PushedItem

MOST_JOBS = 100  # maximum per pull, and per batch of results
LONGEST_WAIT_SECONDS = 30
RESULT_EXAMPLE: dict[str, Any] = {
    "epoch": 1,
    "status": "success",
    "data": {"name": "Anchor", "price": "3.50"},
    "meta": {"crawl_duration": 0.21, "html_hash": "9f2c"},
}

Epoch = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Name = Annotated[str, matching(r"^[A-Za-z0-9_.:@-]{1,100}\Z", "1 to 100 letters, digits and `_.:@-`")]
Data = dict[str, Any] | list[Any] | str | None


class PullForm(Form, frozen=True, kw_only=True):
    """A request by a bot to pull jobs."""

    bot_id: Annotated[Name, describe("Name of the bot, for logs and statistics; jobs are leased to its token.")]
    capabilities: Annotated[
        list[Literal["http", "js", "special"]],
        describe(
            "Capabilities of the bot; the bot gets only jobs that need one of them. `js` does not include `http`.",
            min_length=1,
            max_length=3,
        ),
    ] = field(default_factory=lambda: ["http"])
    max: Annotated[int, describe("Maximum number of jobs to return.", ge=1, le=MOST_JOBS)] = 1
    wait_seconds: Annotated[
        float, describe("How long to wait for a job (long polling).", ge=0, le=LONGEST_WAIT_SECONDS)
    ] = 0.0


class HeartbeatForm(Form, frozen=True, kw_only=True):
    epoch: Annotated[Epoch, describe("Epoch of the lease, from the pull response.")]


class ErrorForm(Form, frozen=True, kw_only=True):
    """The error with which the fetch failed."""

    code: Annotated[str, describe("Short error code.", min_length=1, max_length=100)]
    message: Annotated[str, describe("Error message.", max_length=10_000)] = ""


class MetaForm(Form, frozen=True, kw_only=True):
    """Metadata of a result."""

    crawl_duration: Annotated[
        Annotated[float, Meta(ge=0, le=10_000_000)] | None, describe("Duration of the fetch in seconds.")
    ] = None
    error: Annotated[
        ErrorForm | Annotated[str, Meta(max_length=10_000)] | None,
        describe("Error with which the fetch failed: {code, message}, or text."),
    ] = None
    html_hash: Annotated[
        Annotated[str, Meta(max_length=200)] | None, describe("Content hash; stable until the page changes.")
    ] = None


class ResultForm(Form, frozen=True, kw_only=True):
    """The result of a job."""

    epoch: Annotated[Epoch, describe("Epoch of the lease, from the pull response.")]
    status: Annotated[Status, describe("Outcome of the job. The server decides whether to retry the job.")]
    data: Annotated[Data, describe("Extracted data: an object, a list or text.")] = None
    meta: Annotated[MetaForm, describe("{crawl_duration, error, html_hash}.")] = field(default_factory=MetaForm)

    unquoted = frozenset({"data", "meta"})
    raw = frozenset({"data"})


class BatchItem(ResultForm, frozen=True, kw_only=True):
    job_id: Annotated[str, describe("Id of the job.", min_length=1, max_length=300)]


class BatchForm(Form, frozen=True, kw_only=True):
    results: Annotated[
        list[BatchItem],
        describe("The results; each is accepted or rejected separately.", min_length=1, max_length=MOST_JOBS),
    ]

    unquoted = frozenset({"results"})
    raw = frozenset({"results"})


class BotApi:
    """`/bot/v1`."""

    max_body_setting = "SHOAL_MAX_RESULT"

    def __init__(self, bots: Bots, clock: Clock, max_body: int) -> None:
        self._bots = bots
        self._clock = clock
        self.max_body = max_body

    @endpoint(
        "POST",
        "/bot/v1/jobs/pull",
        scope=TokenScope.BOT,
        summary="Pull page jobs that match the bot's capabilities.",
        body=PullForm,
        response=PulledJobs,
        request_example={"bot_id": "spider-1", "capabilities": ["http"], "max": 10, "wait_seconds": 20},
        problems=[RateLimited],
    )
    async def pull_jobs(self, request: EndpointRequest[PullForm, Nothing]) -> PulledJobs:
        """Each job is leased to the token of the request until the lease expires; a heartbeat renews the lease. A job
        is returned only when the rate limit of its host allows a request now. If there is no such job, `jobs` is
        empty."""
        form = request.body
        capabilities = tuple(sorted(set(form.capabilities)))
        pull = Pull(caller_of(request.http).who, form.bot_id, capabilities, form.max)
        tasks = await self._bots.look(pull)
        if not tasks and form.wait_seconds:
            # If the bot disconnects, the job stays available for other bots.
            tasks = await unless_gone(request.http, self._bots.wait(pull, form.wait_seconds))
        return PulledJobs(jobs=[BotJob.of(task) for task in tasks])

    @endpoint(
        "POST",
        "/bot/v1/jobs/{job_id}/heartbeat",
        scope=TokenScope.BOT,
        summary="Renew the lease of a job.",
        body=HeartbeatForm,
        response=Heartbeat,
        request_example={"epoch": 1},
        response_example={"ttl_seconds": 600.0, "cancelled": False},
        problems=[LeaseLost],
    )
    async def send_heartbeat(self, request: EndpointRequest[HeartbeatForm, Nothing]) -> Heartbeat:
        """If `cancelled` is true, stop working on the job: its result will be rejected."""
        beat = await self._bots.beat(
            caller_of(request.http).who, _fence(request.path_param("job_id"), request.body.epoch)
        )
        return Heartbeat(ttl_seconds=beat.ttl_seconds, cancelled=beat.cancelled)

    @endpoint(
        "POST",
        "/bot/v1/jobs/{job_id}/result",
        scope=TokenScope.BOT,
        summary="Push the result of a job.",
        body=ResultForm,
        response=Pushed,
        request_example=RESULT_EXAMPLE,
        response_example={"job_id": "job_01hr2v8k3m4n5p6q", "state": "DONE"},
        problems=[LeaseLost, TooLarge],
    )
    async def push_result(self, request: EndpointRequest[ResultForm, Nothing]) -> Pushed:
        """If the same result is sent again, the response is the same. A result without a valid lease is rejected with
        409 and changes nothing. A result with `status: success` whose data lacks a required field of the rule set
        counts as `fail`."""
        delivery = self._delivery(request.path_param("job_id"), request.body, "")
        [receipt] = await self._bots.settle(caller_of(request.http).who, [delivery])
        if receipt.state is None:
            raise LeaseLost(delivery.fence.job_id, delivery.fence.epoch)
        return Pushed.of(receipt)

    @endpoint(
        "POST",
        "/bot/v1/results",
        scope=TokenScope.BOT,
        summary="Push the results of several jobs.",
        body=BatchForm,
        response=PushedBatch,
        request_example={"results": [{"job_id": "job_01hr2v8k3m4n5p6q", **RESULT_EXAMPLE}]},
        response_example={"results": [{"job_id": "job_01hr2v8k3m4n5p6q", "status": 200, "state": "DONE"}]},
        problems=[TooLarge],
    )
    async def push_results(self, request: EndpointRequest[BatchForm, Nothing]) -> PushedBatch:
        """Each result is processed separately and has a separate status: 200, or 409 with the code `lease_lost`. If one
        item is invalid, the whole batch is rejected."""
        items = request.body.results
        deliveries = [self._delivery(one.job_id, one, f"results[{place}].") for place, one in enumerate(items)]
        receipts = await self._bots.settle(caller_of(request.http).who, deliveries)
        return PushedBatch(results=[PushedItem.of(receipt) for receipt in receipts])

    def _delivery(self, job_id: str, form: ResultForm, place: str) -> ResultDelivery:
        _check_data(form.data, place)
        code, message = _error(form, place)
        if any("\0" in text for text in (job_id, code, message, form.meta.html_hash) if text):
            raise InvalidInput(f"{place}meta", "or the job id contains a NUL character", "leave it out")
        result = Result(
            status=form.status,
            url="",  # the URL of the job is used
            fetched_at=self._clock.micros(),
            data=form.data,
            duration_seconds=form.meta.crawl_duration,
            error_code=code,
            error_message=message,
            html_hash=form.meta.html_hash,
        )
        return ResultDelivery(_fence(job_id, form.epoch), result)


def _fence(job_id: str, epoch: int) -> Fence:
    return Fence(JobId(job_id), epoch)


def _check_data(data: Data, place: str) -> None:
    """Reject data that cannot be stored."""
    try:
        orjson.dumps(data)
    except orjson.JSONEncodeError:
        fix = "flatten it, or send it as text"
        raise InvalidInput(f"{place}data", "is nested too deeply, or contains an unpaired surrogate", fix) from None


def _error(form: ResultForm, place: str) -> tuple[str | None, str | None]:
    error = form.meta.error
    if form.status is Status.SUCCESS:
        if error:
            raise InvalidInput(
                f"{place}meta.error", "cannot be combined with status: success", "leave it out, or send status: fail"
            )
        return None, None
    if isinstance(error, ErrorForm):
        return error.code, error.message
    return "failed", error or "The bot reported no reason."
