"""Actions on one crawl: start, pause, resume, stop, retry, change, release a pattern, remove."""

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.responses import Response

from shoal.base.errors import InvalidInput
from shoal.base.text import message
from shoal.crawl.frontier.admin import CrawlRemovals, FrontierAdmin
from shoal.crawl.lifecycle.change import CrawlChange
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.lifecycle.failed_urls import FailedUrls
from shoal.serve.authentication import caller_of
from shoal.serve.console.forms import ConsoleForm, form_endpoint, number_or_text, read_form
from shoal.serve.console.shell import Shell, carry_out, local_path
from shoal.serve.endpoint import EndpointRequest, Nothing
from shoal.serve.resources.crawl import VERBS

LISTS: Final = ("include", "exclude")
FLOATS: Final = ("delay_seconds", "max_seconds")
LIMITS: Final = ("max_pages", "max_bytes", "max_seconds", "max_pages_per_host", "concurrency", "delay_seconds")
RETRIED: Final = (message("{count} failed URL will be retried."), message("{count} failed URLs will be retried."))
RELEASED: Final = (message("{count} URL is queued again."), message("{count} URLs are queued again."))
REMOVING: Final = message("The crawl is being removed.")
REMOVE_SECONDS: Final = 2.0  # after this time, a removal continues in the background
CHANGED: Final = message("The options were changed; workers apply them after their next commit.")


class CrawlActions:
    """Forms that change a crawl."""

    def __init__(self, shell: Shell, crawls: Crawls, frontier: FrontierAdmin, removals: CrawlRemovals) -> None:
        self._removals = removals
        self._shell = shell
        self._crawls = crawls
        self._frontier = frontier

    @form_endpoint("/crawls/{crawl_id}/actions", "Start, pause, resume, stop, continue or remove a crawl.")
    async def act_on_crawl(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        form, crawl_id = await read_form(request.http), request.path_param("crawl_id")
        name = form.get("action")
        action = VERBS.get(name)
        if action is None:
            raise InvalidInput("action", "is not known", f"use one of {', '.join(VERBS)}")
        caller_of(request.http).demand(action.scope)
        language = self._shell.view(request.http).language
        if action.question and not form.is_confirmed:
            return self._shell.confirm(request.http, form, action)
        crawls = self._crawls
        verbs: dict[str, Callable[[], Awaitable[object]]] = {
            "start": lambda: crawls.start(crawl_id),
            "pause": lambda: crawls.pause(crawl_id),
            "resume": lambda: crawls.resume(crawl_id),
            "retry": lambda: crawls.retry(crawl_id, audit=request.audit),
            "stop": lambda: crawls.stop(crawl_id),
            "force": lambda: crawls.stop(crawl_id, force=True, audit=request.audit),
        }
        if name != "remove":
            return await carry_out(self._shell, back_in(request, form), verbs[name], language(action.done))

        async def remove() -> str:
            rows = await self._removals.remove(crawl_id, REMOVE_SECONDS, request.audit)
            return language(action.done if rows is None else REMOVING)

        return await carry_out(self._shell, back_in(request, form), remove, then="/crawls")

    @form_endpoint("/crawls/{crawl_id}/retry", "Retry the failed URLs that match.")
    async def retry_urls(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        form, crawl_id = await read_form(request.http), request.path_param("crawl_id")
        language = self._shell.view(request.http).language
        which = FailedUrls.read(
            {
                "status": ["error" if one == "none" else one for one in form.all("status") if one],
                "error": [one for one in form.all("error") if one not in ("", "any")],
                "like": re.escape(form.get("text")) or None,
            }
        )

        async def retry() -> str:
            return language.plural(*RETRIED, await self._crawls.retry_these(crawl_id, which, audit=request.audit))

        return await carry_out(self._shell, back_in(request, form), retry)

    @form_endpoint("/crawls/{crawl_id}/release", "Release a pattern from quarantine.")
    async def release_pattern(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        form, crawl_id = await read_form(request.http), request.path_param("crawl_id")
        language = self._shell.view(request.http).language

        async def release() -> str:
            return language.plural(
                *RELEASED, await self._crawls.release(crawl_id, form.get("pattern"), audit=request.audit)
            )

        return await carry_out(self._shell, back_in(request, form), release)

    @form_endpoint("/crawls/{crawl_id}/options", "Change limits, filters and speed while the crawl runs.")
    async def change_options(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        form, crawl_id = await read_form(request.http), request.path_param("crawl_id")

        async def change() -> None:
            await self._crawls.change(crawl_id, CrawlChange.read(changed_values(form)), audit=request.audit)

        language = self._shell.view(request.http).language
        return await carry_out(self._shell, back_in(request, form), change, language(CHANGED))


def back_in(request: EndpointRequest[Any, Any], form: ConsoleForm) -> str:
    """Return the page from which a form was sent: a tab of its crawl, or a different page."""
    return local_path(form.get("back") or f"/crawls/{request.path_param('crawl_id')}")


def changed_values(form: ConsoleForm) -> dict[str, Any]:
    """Return the options in a form as in a JSON request body; an empty limit is removed."""
    values: dict[str, Any] = {}
    for name, text in form:
        if name not in CrawlChange.__struct_fields__:
            continue
        if name in LISTS:
            values[name] = form.lines(name)
        elif not text.strip():
            if name in LIMITS:
                values[name] = None
        elif name == "speed":
            values[name] = text.strip()
        else:
            values[name] = number_or_text(text.strip(), is_float=name in FLOATS)
    return values
