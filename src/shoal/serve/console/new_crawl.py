"""The form for a new crawl. Fields are checked while they are filled in, and a preview shows which URLs the scope
includes."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, get_args

from starlette.responses import Response

from shoal.access.token import TokenScope
from shoal.base.errors import InvalidInput, ShoalError
from shoal.base.request_form import fields_of
from shoal.base.settings import Speed
from shoal.base.text import message
from shoal.crawl.crawl import CrawlConfig, Scope, shown_config
from shoal.crawl.frontier.fates import SKIPS
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.preview import ScopePreview, ScopePreviewer
from shoal.serve.console.forms import (
    AnyQuery,
    ConsoleForm,
    as_text,
    form_endpoint,
    number_or_text,
    page_endpoint,
    read_form,
)
from shoal.serve.console.shell import Notice, Shell, sentence
from shoal.serve.crawls import labels_of
from shoal.serve.endpoint import EndpointRequest, Nothing
from shoal.serve.problems import Json

LISTS: Final = ("seeds", "include", "exclude")  # one value per line
NUMBERS: Final = ("depth", "max_pages", "max_seconds", "max_pages_per_host", "concurrency", "workers", "priority")
FLOATS: Final = ("delay_seconds",)
TEXTS: Final = ("scope", "speed", "robots", "sitemap", "render", "user_agent", "project", "recrawl_of")
SWITCHES: Final = ("keep_bodies", "links", "analyze")
SAMPLE: Final = "https://example.com/"
STARTED: Final = message("The crawl was created.")


class NewCrawlPage:
    """`/crawls/new`."""

    def __init__(self, shell: Shell, crawls: Crawls, previewer: Callable[[], ScopePreviewer]) -> None:
        self._shell = shell
        self._crawls = crawls
        self._previewer = previewer

    @page_endpoint("/crawls/new", "Show the form for a crawl.", TokenScope.WRITE)
    async def show_new_crawl(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        """Show the form, empty or with the options of another crawl."""
        query = request.http.query_params
        values: dict[str, Any] = {"seeds": query.get("seeds", "")}
        if copied := query.get("from"):
            config = (await self._crawls.get(copied)).crawl.config
            values = shown_config(config) | {"seeds": config.seeds, "project": config.project, "labels": config.labels}
            values |= {"priority": config.priority, "analyze": config.analyze or query.get("analyze") == "yes"}
        return self._shown(request, {name: as_text(value) for name, value in values.items()}, {})

    @form_endpoint("/crawls/new", "Start a crawl from the form.")
    async def create_from_form(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        form = await read_form(request.http)
        action = form.get("action")
        config, problems = await asyncio.to_thread(self._read, form)
        if config is None or action == "preview":
            shown = await self._preview(config) if config is not None else None
            return self._shown(request, dict(form), problems, shown)
        crawl = await self._crawls.submit(config, audit=request.audit)
        language = self._shell.view(request.http).language
        return self._shell.redirect(f"/crawls/{crawl.id}", Notice(language(STARTED)))

    @form_endpoint("/crawls/new/check", "Check the form while it is filled in.")
    async def check_form(self, request: EndpointRequest[Nothing, Nothing]) -> Json:
        """Return the problem of each field, and with `preview` the URLs that the scope includes, as HTML."""
        form = await read_form(request.http)
        config, problems = await asyncio.to_thread(self._read, form)
        html = ""
        if form.get("action") == "preview" and config is not None:
            context = {"preview": await self._preview(config), "skips": SKIPS}
            html = self._shell.region(self._shell.view(request.http), "scope_preview", context)
        return Json({"problems": problems, "preview": html})

    async def _preview(self, config: CrawlConfig) -> ScopePreview:
        return await self._previewer().preview(config)

    def _read(self, form: ConsoleForm) -> tuple[CrawlConfig | None, dict[str, str]]:
        """Return the options in a form, or the problems by field."""
        problems: dict[str, str] = {}
        values = _values(form, problems)
        for name, value in values.items():
            try:
                CrawlConfig.read({"seeds": [SAMPLE], name: value}, called=_nameless)
            except InvalidInput as error:
                problems[name] = sentence(error.message.strip())
        if problems:
            return None, problems
        try:
            config = CrawlConfig.read(values)
            self._crawls.check(config)
        except InvalidInput as error:
            field = str(error.facts.get("field", "seeds")).partition("[")[0].partition(" ")[0]
            return None, {field: sentence(error.called(form.line_of).message)}
        return config, {}

    def _shown(
        self,
        request: EndpointRequest[Any, Any],
        values: Mapping[str, str],
        problems: dict[str, str],
        preview: ScopePreview | None = None,
    ) -> Response:
        defaults = {name: "" if one.default is None else one.default for name, one in fields_of(CrawlConfig).items()}
        context = {
            "values": values,
            "defaults": defaults,
            "is_new": not values.get("scope"),
            "problems": problems,
            "preview": preview,
            "skips": SKIPS,
            "scopes": get_args(Scope),
            "speeds": get_args(Speed),
        }
        status = 422 if problems else 200
        return self._shell.page(request.http, "new_crawl.html", context, status, section="crawls")


def _values(form: ConsoleForm, problems: dict[str, str]) -> dict[str, Any]:
    """Return the filled-in fields as in a JSON request body."""
    values: dict[str, Any] = {name: form.lines(name) for name in LISTS}
    for name in (*NUMBERS, *FLOATS):
        if text := form.get(name):
            values[name] = number_or_text(text, is_float=name in FLOATS)
    values |= {name: form.get(name) for name in TEXTS if form.get(name)}
    values |= {name: form.get(name) == "yes" for name in SWITCHES}
    try:
        values["labels"] = labels_of(form.lines("labels"))
    except ShoalError as error:
        problems["labels"] = sentence(error.message)
    return values


def _nameless(name: str) -> str:
    """Return an empty field name, because the problem is shown below the field."""
    return name.removeprefix(name.partition("[")[0])
