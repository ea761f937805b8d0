"""The list of crawls: search with qualifiers, counts by state, and actions on selected crawls or on all crawls that
match."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.responses import Response

from shoal.access.audit_log import AuditHook
from shoal.access.token import TokenScope
from shoal.base.errors import InvalidInput, NotFound, StateConflict
from shoal.base.text import message
from shoal.crawl.frontier.admin import CrawlRemovals
from shoal.crawl.lifecycle.crawl_status import CrawlSearch, FoundCrawls
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.states import LABELS, PAUSABLE, STOPPABLE, TERMINAL, CrawlState
from shoal.crawl.store import CrawlFilter
from shoal.serve.authentication import caller_of
from shoal.serve.console.crawl_actions import REMOVE_SECONDS
from shoal.serve.console.crawl_rows import CrawlRow, row_of
from shoal.serve.console.exports import batched, listed
from shoal.serve.console.feed import LivePage
from shoal.serve.console.format import Language
from shoal.serve.console.forms import (
    AnyQuery,
    ConsoleForm,
    Search,
    View,
    form_endpoint,
    page_endpoint,
    parse,
    read_form,
    row_in,
    suggestion,
)
from shoal.serve.console.shell import Notice, Shell, local_path, sentence
from shoal.serve.crawls import LAST_CRAWL, labels_of
from shoal.serve.endpoint import EndpointRequest, Nothing, always
from shoal.serve.resources.crawl import VERBS, Crawl
from shoal.serve.resources.resource import Verb
from shoal.serve.stats import Cached

ROWS: Final = 50
QUALIFIERS: Final = ("state", "host", "project", "label")
MOST_AT_ONCE: Final = 1000  # maximum number of crawls that one action changes
BATCH: Final = 100


@dataclass(frozen=True, slots=True)
class BulkAction:
    """A verb on several crawls, and the states in which it is possible. A verb that needs confirmation has two
    questions: one for a known number of crawls, and one for the crawls that are selected in the browser."""

    verb: Verb
    states: frozenset[CrawlState]
    done: tuple[str, str]  # singular, plural
    question: tuple[str, str] = ("", "")
    chosen: str = ""


ACTIONS: Final = {
    "pause": BulkAction(
        VERBS["pause"],
        PAUSABLE,
        (message("{count} crawl is being paused."), message("{count} crawls are being paused.")),
    ),
    "resume": BulkAction(
        VERBS["resume"],
        frozenset({CrawlState.PAUSED}),
        (message("{count} crawl was resumed."), message("{count} crawls were resumed.")),
    ),
    "stop": BulkAction(
        VERBS["stop"],
        STOPPABLE,
        (message("{count} crawl is being stopped."), message("{count} crawls are being stopped.")),
        (message("Stop {count} crawl permanently?"), message("Stop {count} crawls permanently?")),
        message("Stop the selected crawls permanently?"),
    ),
    "remove": BulkAction(
        VERBS["remove"],
        frozenset(TERMINAL),
        (message("{count} crawl was removed."), message("{count} crawls were removed.")),
        (message("Remove {count} crawl with its pages?"), message("Remove {count} crawls with their pages?")),
        message("Remove the selected crawls with their pages?"),
    ),
}
REMOVING: Final = (message("{count} crawl is being removed."), message("{count} crawls are being removed."))


class CrawlsPage(LivePage):
    """`/crawls`."""

    paths = ("/crawls",)
    regions = ("crawl_states", "crawl_rows")
    template, section, query = "crawls.html", "crawls", ("q", "after")

    def __init__(
        self,
        shell: Shell,
        crawls: Crawls,
        search: CrawlSearch,
        removals: CrawlRemovals,
        counts: Cached[dict[str, int]],
    ) -> None:
        self._counts = counts
        self._shell = shell
        self._search = search
        self._crawls = crawls
        self._removals = removals

    @page_endpoint("/crawls", "Show the crawls.")
    async def show_crawls(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        return await self.shown(request, address=f"{request.http.url.scheme}://{request.http.url.netloc}")

    async def once(self, request: EndpointRequest[Any, Any], view: View, context: Mapping[str, Any]) -> dict[str, Any]:
        return {"suggestions": suggestions(context["rows"], view.language)}

    async def context(self, view: View, params: Mapping[str, str]) -> dict[str, Any]:
        search, problem, found = Search(params.get("q", "")), "", FoundCrawls([], None)
        after = row_in(params.get("after"), LAST_CRAWL)
        try:
            search = parse(params.get("q", ""), QUALIFIERS)
            found = await self._search.find(filter_of(search), after=after, limit=ROWS)
        except InvalidInput as error:
            problem = sentence(error.message)
        formats = self._shell.formats(view)
        rows = [row_of(status, formats, self._removals.is_running(status.crawl.id)) for status in found.crawls]
        counts = await self._counts.get()
        return {
            "search": search,
            "problem": problem,
            "rows": rows,
            "counts": counts,
            "total": sum(counts.values()),
            "badges": [(state.value, view.language(word)) for state, word in LABELS.items() if counts.get(state.value)],
            "is_first": after is None,
            "older": found.next,
            "is_short": found.next is not None and len(rows) < ROWS,
            "is_live": any(row.is_live or row.is_removing for row in rows),
            "actions": {
                name: action
                for name, action in ACTIONS.items()
                if (view.may_administer if action.verb.scope is TokenScope.ADMIN else view.may_write)
            },
        }

    @page_endpoint("/crawls.{format}", "Download the crawls that a search finds.", expensive=always)
    async def export_crawls(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        wanted = filter_of(parse(request.http.query_params.get("q", ""), QUALIFIERS))
        found = batched(
            lambda after: self._crawls.matching(wanted, after=after, limit=BATCH),
            lambda one: one.crawl.number,
            Crawl.of,
        )
        return listed(request, "crawls", Crawl, found)

    @form_endpoint("/crawls/actions", "Pause, resume, stop or remove crawls.")
    async def act_on_crawls(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        """Act on the selected crawls, or on all crawls that match a search."""
        form = await read_form(request.http)
        name = form.get("action")
        action = ACTIONS.get(name)
        if action is None:
            raise InvalidInput("action", "is not known", f"use one of {', '.join(ACTIONS)}")
        caller_of(request.http).demand(action.verb.scope)
        back, language = local_path(form.get("back", "/crawls")), self._shell.view(request.http).language
        ids, skipped = await self._chosen(form, action)
        if not ids:
            return self._shell.redirect(back, Notice(language(NOTHING_TO_DO), is_problem=True))
        if action.verb.question and not form.is_confirmed:
            return self._shell.confirm(request.http, form, action.verb, language.plural(*action.question, len(ids)))
        return self._shell.redirect(back, await self._apply(name, action, ids, skipped, language, request.audit))

    async def _chosen(self, form: ConsoleForm, action: BulkAction) -> tuple[list[str], int]:
        """Return the ids of the crawls to change, and the number of selected crawls that are in a different state."""
        if form.get("which") != "matching":
            ids = list(dict.fromkeys(form.all("id")))[:MOST_AT_ONCE]
            states = {one: (await self._crawls.get(one)).crawl.state for one in ids}
            chosen = [one for one, state in states.items() if state in action.states]
            return chosen, len(ids) - len(chosen)
        wanted, after, found = filter_of(parse(form.get("q"), QUALIFIERS)), None, list[str]()
        while len(found) < MOST_AT_ONCE:
            batch = await self._crawls.matching(wanted, after=after, limit=BATCH)
            found += [one.crawl.id for one in batch if one.crawl.state in action.states]
            if len(batch) < BATCH:
                break
            after = batch[-1].crawl.number
        return found[:MOST_AT_ONCE], 0

    async def _apply(
        self, name: str, action: BulkAction, ids: list[str], skipped: int, language: Language, audit: AuditHook
    ) -> Notice:
        until = asyncio.get_running_loop().time() + REMOVE_SECONDS

        async def remove(crawl_id: str) -> bool:
            """Return whether the removal continues."""
            seconds = max(0.0, until - asyncio.get_running_loop().time())
            return await self._removals.remove(crawl_id, seconds, audit) is not None

        verbs: dict[str, Callable[[str], Awaitable[object]]] = {
            "pause": self._crawls.pause,
            "resume": self._crawls.resume,
            "stop": self._crawls.stop,
            "remove": remove,
        }
        done, going_on, problem = 0, 0, ""
        for crawl_id in ids:
            try:
                if await verbs[name](crawl_id) is True:
                    going_on += 1
                else:
                    done += 1
            except (StateConflict, NotFound) as error:  # the state of the crawl changed meanwhile
                problem = sentence(error.message)
        text = language.plural(*action.done, done) if done or not going_on else ""
        if going_on:
            text += " " + language.plural(*REMOVING, going_on)
        if skipped:
            text += " " + language.plural(
                "{count} crawl was skipped because of its state.",
                "{count} crawls were skipped because of their state.",
                skipped,
            )
        if len(ids) == MOST_AT_ONCE:
            text += " " + language("Repeat the action for the remaining crawls.")
        return Notice(f"{text} {problem}".strip(), is_problem=bool(problem))


NOTHING_TO_DO = message("Nothing was changed: no selected crawl is in a state that allows it.")


def suggestions(rows: Sequence[CrawlRow], language: Language) -> dict[str, object]:
    """Return the search qualifiers with suggestions: the states, and values of the listed crawls."""
    crawls = [row.status.crawl for row in rows]
    labels = [f"{name}={value}" for crawl in crawls for name, value in crawl.config.labels.items()]
    return {
        "state": suggestion(
            language("current state"), [(state.value, language(word)) for state, word in LABELS.items()]
        ),
        "host": suggestion(language("host of a seed"), [urlsplit(row.site).netloc for row in rows]),
        "project": suggestion(language("name of the project"), [crawl.project for crawl in crawls]),
        "label": suggestion(language("label as name=value"), labels),
    }


def filter_of(search: Search) -> CrawlFilter:
    """Return the filter of a search; raise if a value is invalid."""
    state = search.one("state")
    if state is not None and state not in set(CrawlState):
        known = ", ".join(CrawlState)
        raise InvalidInput("state:", f"cannot be {state[:60]!r}", f"use one of {known}")
    return CrawlFilter(
        state=state,
        project=search.one("project"),
        labels=labels_of(search.all("label")),
        host=search.one("host"),
        text=search.text or None,
    )
