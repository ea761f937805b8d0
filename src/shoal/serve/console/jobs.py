"""Jobs: counts by kind and state, a list with qualifiers, dead letters with retry, and the page of one job with its
leases and an explanation of its state."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from starlette.responses import Response

from shoal.base.errors import InvalidInput
from shoal.base.text import message
from shoal.queue.job import RUN_KINDS, SHARED_LANE, Grant, Job, attempts_made, bot_of, node_of
from shoal.queue.job_admin import JobAdmin
from shoal.queue.job_admin_store import DEAD, JobFilter
from shoal.queue.reasons import reason_text
from shoal.queue.states import LABELS, TERMINAL, JobState
from shoal.serve.authentication import caller_of
from shoal.serve.console.charts import Span, timeline
from shoal.serve.console.exports import at_once, listed
from shoal.serve.console.feed import LivePage
from shoal.serve.console.format import Formats, Language
from shoal.serve.console.forms import AnyQuery, Search, View, form_endpoint, page_endpoint, parse, read_form, suggestion
from shoal.serve.console.shell import Shell, carry_out, local_path, sentence
from shoal.serve.endpoint import EndpointRequest, Nothing, always
from shoal.serve.resources import job as resource
from shoal.serve.resources.job import DEAD_LETTER_VERBS, VERBS
from shoal.serve.stats import Cached

PRIORITY_PARTS: Final = {
    "importance": message("importance"),
    "staleness": message("staleness"),
    "error_rate": message("errors"),
    "signal": message("signal"),
    "overdue": message("overdue"),
}


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job with the texts of its table row."""

    job: Job
    title: str  # the URL of the job, or the crawl or analysis that it belongs to
    node: str

    @property
    def attempts(self) -> int:
        return attempts_made(self.job.state, self.job.attempts, self.job.lease_epoch)

    @property
    def is_dead(self) -> bool:
        return self.job.state in DEAD

    @property
    def is_run(self) -> bool:
        """Return whether the job belongs to a crawl or an analysis. If so, the actions are on the page of that crawl or
        analysis."""
        return self.job.kind in RUN_KINDS

    @property
    def is_live(self) -> bool:
        return self.job.state not in TERMINAL


def row_of(job: Job, formats: Formats) -> JobRow:
    return JobRow(
        job=job,
        title=formats.text(job.url or job.run_id or job.id),
        node=formats.text(node_of(job.lease_holder), 80) if job.lease_holder else "",
    )


def held_by(grant: Grant) -> tuple[str, int | None]:
    """Return the node and the process id that held a lease. Page jobs are leased in batches, so their node and process
    are known only from the name of the holder."""
    if grant.node is not None:
        return grant.node, grant.pid
    if (bot := bot_of(grant.holder)) is not None:
        return bot[1] or bot[0], None
    node, _, rest = grant.holder.partition("/")
    last = rest.rpartition("/")[2]
    return node, int(last) if last.isascii() and last.isdecimal() and len(last) < 12 else None


ROWS: Final = 50
BATCH: Final = 500
QUALIFIERS: Final = ("state", "kind", "run", "lane")
DEAD_LETTERS: Final = "dead"  # the value of `state:` that selects failed and expired jobs
LONGEST_ERROR: Final = 1000  # characters
LONGEST_CURSOR: Final = 60
DEAD_RETRIED: Final = (
    message("{count} dead letter will be retried."),
    message("{count} dead letters will be retried."),
)
PURGED: Final = (message("{count} job was removed."), message("{count} jobs were removed."))


class JobsPage(LivePage):
    """`/jobs`."""

    paths = ("/jobs",)
    regions = ("job_counts", "job_rows")
    template, section, query = "jobs.html", "jobs", ("q", "before")

    def __init__(self, shell: Shell, jobs: JobAdmin, counts: Cached[dict[str, dict[str, int]]]) -> None:
        self._shell = shell
        self._jobs = jobs
        self._counts = counts

    @page_endpoint("/jobs", "Show the jobs.")
    async def show_jobs(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        return await self.shown(request, suggestions=suggestions(self._shell.view(request.http).language))

    async def context(self, view: View, params: Mapping[str, str]) -> dict[str, Any]:
        search, problem, which = Search(params.get("q", "")), "", JobFilter()
        try:
            search = parse(params.get("q", ""), QUALIFIERS)
            which = filter_of(search)
        except InvalidInput as error:
            problem = sentence(error.message)
        before = params.get("before", "")
        found = await self._jobs.newest(
            which, before=before if 0 < len(before) <= LONGEST_CURSOR and before.isprintable() else None, limit=ROWS
        )
        counts, formats = await self._counts.get(), self._shell.formats(view)
        by_state = {state: sum(kinds.get(state, 0) for kinds in counts.values()) for state in JobState}
        return {
            "search": search,
            "problem": problem,
            "rows": [] if problem else [row_of(job, formats) for job in found.items],
            "more": None if problem else found.next,
            "is_first": not before,
            "is_dead": which.is_dead,
            "counts": counts,
            "by_state": by_state,
            "dead": by_state[JobState.FAILED] + by_state[JobState.EXPIRED],
            "total": sum(by_state.values()),
            "badges": [(state, view.language(word)) for state, word in LABELS.items()],
            "is_live": True,
        }

    @page_endpoint("/jobs.{format}", "Download the jobs that a search finds.", expensive=always)
    async def export_jobs(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        which = filter_of(parse(request.http.query_params.get("q", ""), QUALIFIERS))

        async def batches() -> AsyncIterator[list[resource.Job]]:
            found = await self._jobs.newest(which, limit=BATCH)
            yield [resource.Job.of(job) for job in found.items]
            while found.next is not None:
                found = await self._jobs.newest(which, before=found.next, limit=BATCH)
                yield [resource.Job.of(job) for job in found.items]

        return listed(request, "jobs", resource.Job, batches())

    @form_endpoint("/jobs/actions", "Retry or remove dead letters.")
    async def act_on_jobs(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        """Act on all dead letters that match a search."""
        form = await read_form(request.http)
        view, back = self._shell.view(request.http), local_path(form.get("back", "/jobs"))
        found = filter_of(parse(form.get("q"), QUALIFIERS))
        which = JobFilter(found.state, found.kind, found.run_id, found.lane, dead=True)
        action, language = form.get("action"), view.language
        if action not in DEAD_LETTER_VERBS:
            raise InvalidInput("action", "is not known", "use retry or purge")
        caller_of(request.http).demand(DEAD_LETTER_VERBS[action].scope)
        if not form.is_confirmed:
            return self._shell.confirm(request.http, form, DEAD_LETTER_VERBS[action])

        async def act() -> str:
            if action == "retry":
                return language.plural(*DEAD_RETRIED, await self._jobs.retry_dead(which, audit=request.audit))
            return language.plural(*PURGED, await self._jobs.purge(which, timedelta(0), audit=request.audit))

        self._counts.forget()
        return await carry_out(self._shell, back, act)


class JobPage(LivePage):
    """`/jobs/{job_id}`."""

    paths = ("/jobs/{job_id}",)
    regions = ("job",)
    template, section = "job.html", "jobs"

    def __init__(self, shell: Shell, jobs: JobAdmin) -> None:
        self._shell = shell
        self._jobs = jobs

    @page_endpoint("/jobs/{job_id}", "Show a job.")
    async def show_job(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        return await self.shown(request)

    async def context(self, view: View, params: Mapping[str, str]) -> dict[str, Any]:
        found = await self._jobs.explain(params["job_id"])
        job, formats = found.job, self._shell.formats(view)
        history = await self._jobs.history(job.id)
        row = row_of(job, formats)
        holders = [held_by(grant) for grant in history]
        nodes = list(dict.fromkeys(node for node, _ in holders))
        spans = [
            Span(
                grant.granted_at,
                grant.ended_at or formats.now,
                nodes.index(node),
                "s3" if grant.ended is None else {"done": "s2", "released": "s0"}.get(grant.ended.value, "s5"),
                f"{formats.text(node, 80)}, {formats.exact(grant.granted_at)}",
            )
            for grant, (node, _) in zip(history, holders, strict=True)
        ]
        return {
            "row": row,
            "job": job,
            "reason": view.language(reason_text(job.state_reason)),
            "sentence": formats.sentence(found.sentence, LONGEST_ERROR),
            "error": "" if found.sentence.values.get("error") or job.state is JobState.DONE else job.error,
            "facts": {name: value for name, value in found.facts.items() if name not in ("dispatch", "error")},
            "dispatch": found.facts.get("dispatch"),
            "history": [(grant, *holder) for grant, holder in zip(history, holders, strict=True)],
            "parts": [
                (view.language(PRIORITY_PARTS.get(name, name)), formats.number(round(points, 1) + 0.0, 1))
                for name, points in job.priority_parts.items()
            ],
            "timeline": timeline(spans, view.language("Leases over time"), formats) if len(history) > 1 else "",
            "is_live": row.is_live,
        }

    @page_endpoint("/jobs/{job_id}/leases.{format}", "Download the leases of a job.", expensive=always)
    async def export_leases(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        job_id = request.path_param("job_id")
        rows = [resource.Grant.of(grant) for grant in await self._jobs.history(job_id)]
        return listed(request, f"{job_id}.leases", resource.Grant, at_once(*rows))

    @form_endpoint("/jobs/{job_id}/actions", "Retry or cancel a job.")
    async def act_on_job(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        form, job_id = await read_form(request.http), request.path_param("job_id")
        language = self._shell.view(request.http).language
        action = form.get("action")
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "retry": lambda: self._jobs.retry(job_id, audit=request.audit),
            "cancel": lambda: self._jobs.cancel(job_id, audit=request.audit),
        }
        if action not in calls:
            raise InvalidInput("action", "is not known", f"use one of {', '.join(calls)}")
        verb = VERBS[action]
        if verb.question and not form.is_confirmed:
            return self._shell.confirm(request.http, form, verb)
        return await carry_out(self._shell, f"/jobs/{job_id}", calls[action], language(verb.done))


def suggestions(language: Language) -> dict[str, object]:
    """Return the search qualifiers, with the states and kinds as suggestions."""
    states = [(state.value, language(word)) for state, word in LABELS.items()]
    return {
        "state": suggestion(language("current state"), [("dead", language("Dead letters")), *states]),
        "kind": suggestion(language("kind of job"), ("crawl", "page", "analysis")),
        "run": suggestion(language("id of a crawl, an analysis or a group")),
        "lane": suggestion(language("shared, or the name of a node"), (SHARED_LANE,)),
    }


def filter_of(search: Search) -> JobFilter:
    """Return the filter of a search; raise if a value is invalid."""
    if search.text:
        raise InvalidInput(repr(search.text[:60]), "has no qualifier", "use state:, kind:, run: or lane:")
    state = search.one("state")
    known = [*JobState, DEAD_LETTERS]
    if state is not None and state not in known:
        raise InvalidInput("state:", f"cannot be {state[:60]!r}", f"use one of {', '.join(known)}")
    return JobFilter(
        state=None if state in (None, DEAD_LETTERS) else JobState(state),
        kind=search.one("kind"),
        run_id=search.one("run"),
        lane=search.one("lane"),
        dead=True if state == DEAD_LETTERS else None,
    )
