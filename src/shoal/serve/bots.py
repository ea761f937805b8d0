"""The bot API: page jobs pulled, kept alive and answered over HTTP. What a bot may hold and what becomes of a result is
decided in `page_jobs.bots` and `page_jobs.ingest`."""

import asyncio
from typing import Annotated, Any, Literal

import orjson
from msgspec import Meta, field
from starlette.requests import Request
from starlette.responses import Response

from shoal.access.scopes import TokenScope
from shoal.base.clock import Clock
from shoal.base.errors import InvalidInput, LeaseLost, RateLimited, TooLarge
from shoal.base.ids import JobId
from shoal.base.request_form import Form, describe, matching
from shoal.page_jobs.bots import Bots, Pull, told
from shoal.page_jobs.leasing import PageTask
from shoal.page_jobs.result import Receipt, Result, ResultDelivery, Status
from shoal.queue.job import Fence
from shoal.serve import examples, schemas
from shoal.serve.authentication import caller_of
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.problems import Json

MOST_JOBS = 100  # of one pull, and of one batch of results
LONGEST_WAIT = 30

Epoch = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Name = Annotated[str, matching(r"^[A-Za-z0-9_.:@-]{1,100}\Z", "1 to 100 letters, digits and `_.:@-`")]
Data = dict[str, Any] | list[Any] | str | None


class PullForm(Form, frozen=True, kw_only=True):
    """What a bot asks for."""

    bot_id: Annotated[Name, describe("What the bot calls itself; the owner of what it pulls is its token.")]
    capabilities: Annotated[
        list[Literal["http", "js", "special"]],
        describe("What it can do. `js` does not include `http`.", min_length=1, max_length=3),
    ] = field(default_factory=lambda: ["http"])
    max: Annotated[int, describe("Jobs that it takes at once.", ge=1, le=MOST_JOBS)] = 1
    wait_seconds: Annotated[float, describe("How long it waits for a job to come.", ge=0, le=LONGEST_WAIT)] = 0.0


class BeatForm(Form, frozen=True, kw_only=True):
    epoch: Annotated[Epoch, describe("Of the lease, as the pull told it.")]


class ErrorForm(Form, frozen=True, kw_only=True):
    """Why a fetch failed."""

    code: Annotated[str, describe("In a word.", min_length=1, max_length=100)]
    message: Annotated[str, describe("In a sentence.", max_length=10_000)] = ""


class MetaForm(Form, frozen=True, kw_only=True):
    """What is said about a result."""

    crawl_duration: Annotated[Annotated[float, Meta(ge=0, le=10_000_000)] | None, describe("Seconds.")] = None
    error: Annotated[
        ErrorForm | Annotated[str, Meta(max_length=10_000)] | None, describe("Why it failed: {code, message}, or text.")
    ] = None
    html_hash: Annotated[
        Annotated[str, Meta(max_length=200)] | None, describe("Of the page; the same while the page is.")
    ] = None


class ResultForm(Form, frozen=True, kw_only=True):
    """What a job gave."""

    epoch: Annotated[Epoch, describe("Of the lease, as the pull told it.")]
    status: Annotated[Status, describe("Whether it worked. The server decides what is tried again.")]
    data: Annotated[Data, describe("What was found: an object, or raw text.")] = None
    meta: Annotated[MetaForm, describe("{crawl_duration, error, html_hash}.")] = field(default_factory=MetaForm)

    unquoted = frozenset({"data", "meta"})
    raw = frozenset({"data"})


class BatchItem(ResultForm, frozen=True, kw_only=True):
    job_id: Annotated[str, describe("Which job.", min_length=1, max_length=300)]


class BatchForm(Form, frozen=True, kw_only=True):
    results: Annotated[list[BatchItem], describe("Each judged by itself.", min_length=1, max_length=MOST_JOBS)]

    unquoted = frozenset({"results"})
    raw = frozenset({"results"})


class BotApi:
    """`/bot/v1`."""

    def __init__(self, bots: Bots, clock: Clock, max_body: int) -> None:
        self._bots = bots
        self._clock = clock
        self.max_body = max_body

    @endpoint(
        "POST",
        "/bot/v1/jobs/pull",
        scope=TokenScope.BOT,
        summary="Pull page jobs that match the bot's capabilities; wait for one if asked to.",
        body=PullForm,
        answer=schemas.PulledJobs,
        request_example={"bot_id": "spider-1", "capabilities": ["http"], "max": 10, "wait_seconds": 20},
        response_example={"jobs": [examples.BOT_JOB]},
        problems=[RateLimited],
    )
    async def pull_jobs(self, ask: EndpointRequest[PullForm, Nothing]) -> Response:
        """Each job is this token's until its time is over; a heartbeat extends it. A job is only given when its host
        may be asked now. None is no error: `jobs` is empty then."""
        form = ask.body
        capabilities = tuple(sorted(set(form.capabilities)))
        pull = Pull(caller_of(ask.request).who, form.bot_id, capabilities, form.max)
        tasks = await self._bots.look(pull)
        if not tasks and form.wait_seconds:
            tasks = await self._wait(ask.request, pull, form.wait_seconds)
        return Json({"jobs": [told(task) for task in tasks]})

    @endpoint(
        "POST",
        "/bot/v1/jobs/{job_id}/heartbeat",
        scope=TokenScope.BOT,
        summary="Keep a job for another term.",
        body=BeatForm,
        answer=schemas.Beat,
        request_example={"epoch": 1},
        response_example={"ttl_seconds": 600.0, "cancelled": False},
        problems=[LeaseLost],
    )
    async def beat_job(self, ask: EndpointRequest[BeatForm, Nothing]) -> Json:
        """If it was cancelled, drop the work: its result would be refused."""
        beat = await self._bots.beat(caller_of(ask.request).who, _holder(ask.part("job_id"), ask.body.epoch))
        return Json({"ttl_seconds": beat.ttl_seconds, "cancelled": beat.cancelled})

    @endpoint(
        "POST",
        "/bot/v1/jobs/{job_id}/result",
        scope=TokenScope.BOT,
        summary="Push the result of a job.",
        body=ResultForm,
        answer=schemas.Pushed,
        request_example=examples.BOT_RESULT,
        response_example={"job_id": "job_01hr2v8k3m4n5p6q", "state": "DONE"},
        problems=[LeaseLost, TooLarge],
    )
    async def push_result(self, ask: EndpointRequest[ResultForm, Nothing]) -> Json:
        """The same result sent again gets the same answer. One that is late, or somebody else's, gets 409 and changes
        nothing. A success that lacks a required field of its rule set counts as a fail."""
        delivery = self._delivery(ask.part("job_id"), ask.body, "")
        [receipt] = await self._bots.settle(caller_of(ask.request).who, [delivery])
        if receipt.state is None:
            raise LeaseLost(delivery.holder.job_id, delivery.holder.epoch)
        return Json(_pushed(receipt))

    @endpoint(
        "POST",
        "/bot/v1/results",
        scope=TokenScope.BOT,
        summary="Push results of several jobs.",
        body=BatchForm,
        answer=schemas.PushedBatch,
        request_example={"results": [{"job_id": "job_01hr2v8k3m4n5p6q", **examples.BOT_RESULT}]},
        response_example={"results": [{"job_id": "job_01hr2v8k3m4n5p6q", "status": 200, "state": "DONE"}]},
        problems=[TooLarge],
    )
    async def push_results(self, ask: EndpointRequest[BatchForm, Nothing]) -> Json:
        """Each is judged as if it had come alone, and has its own status: 200, or 409 with code `lease_lost`. A batch
        with an item that cannot be read is refused as a whole."""
        items = ask.body.results
        deliveries = [self._delivery(one.job_id, one, f"results[{place}].") for place, one in enumerate(items)]
        receipts = await self._bots.settle(caller_of(ask.request).who, deliveries)
        return Json({"results": [_item(receipt) for receipt in receipts]})

    async def _wait(self, request: Request, pull: Pull, seconds: float) -> list[PageTask]:
        """Until there is a job, the time is over, or the bot is gone: what it does not take, others get."""
        waiting = asyncio.ensure_future(self._bots.wait(pull, seconds))
        leaving = asyncio.ensure_future(_gone(request))
        try:
            await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return await waiting if waiting.done() else []
        finally:
            waiting.cancel()
            leaving.cancel()

    def _delivery(self, job_id: str, form: ResultForm, place: str) -> ResultDelivery:
        _check_data(form.data, place)
        code, message = _error(form, place)
        if any("\0" in text for text in (job_id, code, message, form.meta.html_hash) if text):
            raise InvalidInput(f"{place}meta", "or the id of the job has a NUL in it", "leave it out")
        result = Result(
            status=form.status,
            url="",  # the job's own
            fetched_at=self._clock.micros(),
            data=form.data,
            duration=form.meta.crawl_duration,
            error_code=code,
            error_message=message,
            html_hash=form.meta.html_hash,
        )
        return ResultDelivery(_holder(job_id, form.epoch), result)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _holder(job_id: str, epoch: int) -> Fence:
    return Fence(JobId(job_id), epoch)


def _check_data(data: Data, place: str) -> None:
    """Refuse what no store could keep."""
    try:
        orjson.dumps(data)
    except orjson.JSONEncodeError:
        fix = "send it flatter, or as text"
        raise InvalidInput(f"{place}data", "is nested too deeply, or has half a character in it", fix) from None


def _error(form: ResultForm, place: str) -> tuple[str | None, str | None]:
    error = form.meta.error
    if form.status is Status.SUCCESS:
        if error:
            raise InvalidInput(f"{place}meta.error", "stands beside a success", "leave it out, or say status: fail")
        return None, None
    if isinstance(error, ErrorForm):
        return error.code, error.message
    return "failed", error or "The bot said no more."


def _pushed(receipt: Receipt) -> dict[str, Any]:
    assert receipt.state is not None
    return {"job_id": receipt.holder.job_id, "state": receipt.state.value.upper()}


def _item(receipt: Receipt) -> dict[str, Any]:
    if receipt.state is not None:
        return {"status": 200, **_pushed(receipt)}
    lost = LeaseLost(receipt.holder.job_id, receipt.holder.epoch)
    return {
        "job_id": receipt.holder.job_id,
        "status": lost.response.http_status,
        "code": lost.code,
        "detail": lost.message,
    }
