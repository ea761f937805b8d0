"""Policies: the list with due and stale policies, and the page of one policy with its runs and actions."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response

from shoal.base.clock import span
from shoal.base.errors import InvalidInput
from shoal.base.request_form import fields_of
from shoal.base.text import message, redact_url
from shoal.page_jobs.groups import History
from shoal.plan.policies import Policies
from shoal.plan.policy import LATE, Policy, PolicyForm, PolicyState, shown_options
from shoal.serve.console.exports import batched, listed
from shoal.serve.console.feed import LivePage
from shoal.serve.console.format import Formats, parted
from shoal.serve.console.forms import (
    AnyQuery,
    Search,
    View,
    form_endpoint,
    page_endpoint,
    parse,
    read_form,
    row_in,
    suggestion,
)
from shoal.serve.console.shell import Notice, Shell, carry_out, local_path, sentence
from shoal.serve.endpoint import EndpointRequest, Nothing, always
from shoal.serve.resources import policy as resource
from shoal.serve.resources.group import Result
from shoal.serve.resources.policy import VERBS


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """A policy with the texts of its table row."""

    policy: Policy
    title: str
    more: int  # number of further seeds
    schedule: str
    state: PolicyState
    is_stale: bool
    staleness: float

    @property
    def id(self) -> str:
        return self.policy.id


def row_of(policy: Policy, now: int, formats: Formats) -> PolicyRow:
    """Return the row of a policy. `now` is the store's time."""
    form, language = policy.form, formats.language
    targets = [form.url] if form.url is not None else form.seeds
    every = policy.form.frequency
    schedule = language("every {interval}", interval=every) if every else f"{form.cron} {form.timezone}"
    if policy.frequency_now is not None:
        schedule += f" ({language('now {interval}', interval=formats.duration(policy.frequency_now.total_seconds()))})"
    staleness = policy.staleness(now)
    return PolicyRow(
        policy=policy,
        title=formats.text(redact_url(targets[0])),
        more=len(targets) - 1,
        schedule=formats.text(schedule, 120),
        state=policy.state(now),
        is_stale=staleness > 1.0,
        staleness=staleness,
    )


ROWS: Final = 50
MOST_DUE: Final = 200
RUNS: Final = 20
BATCH: Final = 500
LAST_POLICY: Final = 2**31 - 1
QUALIFIERS: Final = ("is", "project")
KINDS: Final = ("due", "late", "enabled", "disabled")
RUNS_ALREADY: Final = message("The policy is already running.")


class PoliciesPage(LivePage):
    """`/policies`."""

    paths = ("/policies",)
    regions = ("policy_rows",)
    template, section, query = "policies.html", "policies", ("q", "after")

    def __init__(self, shell: Shell, policies: Policies) -> None:
        self._shell = shell
        self._policies = policies

    @page_endpoint("/policies", "Show the policies.")
    async def show_policies(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        return await self.shown(request)

    async def once(self, request: EndpointRequest[Any, Any], view: View, context: Mapping[str, Any]) -> dict[str, Any]:
        projects = [row.policy.form.project for row in context["rows"]]
        suggestions = {
            "is": suggestion(view.language("status of the policy"), KINDS),
            "project": suggestion(view.language("name of the project"), projects),
        }
        return {"suggestions": suggestions}

    @page_endpoint("/policies.{format}", "Download the policies that a search finds.", expensive=always)
    async def export_policies(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        search = parse(request.http.query_params.get("q", ""), QUALIFIERS)
        is_cut = search.one("is") in ("due", "late")  # due and late policies are read in one query

        async def batches() -> AsyncIterator[list[resource.Policy]]:
            after = 0
            while True:
                now, found = await self._found(search, after)
                yield [resource.Policy.of(policy, now) for policy in found]
                if is_cut or len(found) <= ROWS:
                    return
                after = found[-1].number

        return listed(request, "policies", resource.Policy, batches())

    async def context(self, view: View, params: Mapping[str, str]) -> dict[str, Any]:
        search, problem, after = Search(params.get("q", "")), "", row_in(params.get("after"), LAST_POLICY) or 0
        now, found = 0, list[Policy]()
        try:
            search = parse(params.get("q", ""), QUALIFIERS)
            now, found = await self._found(search, after)
        except InvalidInput as error:
            problem = sentence(error.message)
        formats = self._shell.formats(view)
        more = search.one("is") not in ("due", "late") and len(found) > ROWS if not problem else False
        shown = found[:ROWS] if more else found
        return {
            "search": search,
            "problem": problem,
            "rows": [row_of(policy, now, formats) for policy in shown],
            "counts": await self._policies.counts(LATE),
            "is_first": not after,
            "next": shown[-1].number if more else None,
            "is_cut": search.values.get("is") in (["due"], ["late"]) and len(found) >= MOST_DUE,
            "is_live": True,
        }

    async def _found(self, search: Search, after: int) -> tuple[int, list[Policy]]:
        kind, project = search.one("is"), search.one("project")
        if search.text:
            raise InvalidInput(repr(search.text[:60]), "has no qualifier", "use is: or project:")
        if kind is not None and kind not in KINDS:
            raise InvalidInput("is:", f"cannot be {kind[:60]!r}", f"use one of {', '.join(KINDS)}")
        if kind in ("due", "late"):
            now, due = await self._policies.list_due(MOST_DUE)
            due = [one for one in due if project is None or one.form.project == project]
            return now, [one for one in due if kind == "due" or (one.next_run_at or now) <= now - span(LATE)]
        enabled = None if kind is None else kind == "enabled"
        return await self._policies.page_of(after=after, limit=ROWS + 1, project=project, enabled=enabled)


class PolicyPage(LivePage):
    """`/policies/{policy_id}`."""

    paths = ("/policies/{policy_id}",)
    regions = ("policy",)
    template, section = "policy.html", "policies"

    def __init__(self, shell: Shell, policies: Policies, history: History) -> None:
        self._shell = shell
        self._policies = policies
        self._history = history

    @page_endpoint("/policies/{policy_id}", "Show a policy.")
    async def show_policy(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        return await self.shown(request)

    async def context(self, view: View, params: Mapping[str, str]) -> dict[str, Any]:
        policy = await self._policies.get(params["policy_id"])
        now, _ = await self._policies.page_of(limit=1)
        form = policy.form
        options = form.plain() | {"crawl_config": shown_options(form.crawl_config)}
        return {
            "row": row_of(policy, now, self._shell.formats(view)),
            "policy": policy,
            "age": None if policy.last_success_at is None else (now - policy.last_success_at) / 1e6,
            "options": parted(options, {name: one.default for name, one in fields_of(PolicyForm).items()}),
            "results": await self._history.of_policy(policy.id, limit=RUNS),
            "is_live": policy.live_job_id is not None,
        }

    @page_endpoint("/policies/{policy_id}/runs.{format}", "Download the results of a policy.", expensive=always)
    async def export_runs(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        """The results of the policy's page jobs, newest first. A policy for a site has crawls instead of page jobs."""
        policy_id = (await self._policies.get(request.path_param("policy_id"))).id
        found = batched(
            lambda before: self._history.of_policy(policy_id, before=before, limit=BATCH),
            lambda one: one.number,
            Result.of,
        )
        return listed(request, f"{policy_id}.runs", Result, found)

    @form_endpoint("/policies/{policy_id}/actions", "Run, enable, disable or remove a policy.")
    async def act_on_policy(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        form, policy_id = await read_form(request.http), request.path_param("policy_id")
        language, action = self._shell.view(request.http).language, form.get("action")
        back = local_path(form.get("back") or f"/policies/{policy_id}")

        async def run() -> str:
            begun = await self._policies.run_now(policy_id, audit=request.audit)
            return language(RUNS_ALREADY if begun.duplicate else VERBS["run"].done)

        async def enable() -> str:
            await self._policies.enable(policy_id, action == "enable", audit=request.audit)
            return language(VERBS[action].done)

        verbs: dict[str, Callable[[], Awaitable[str]]] = {"run": run, "enable": enable, "disable": enable}
        if action in verbs:
            return await carry_out(self._shell, back, verbs[action])
        if action != "remove":
            raise InvalidInput("action", "is not known", f"use one of {', '.join(verbs)}, remove")
        if not form.is_confirmed:
            return self._shell.confirm(request.http, form, VERBS["remove"])
        await self._policies.remove(policy_id, audit=request.audit)
        return self._shell.redirect("/policies", Notice(language(VERBS["remove"].done)))
