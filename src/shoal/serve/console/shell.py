"""The shell around every page: templates, navigation, language and theme, notices, confirmation and error pages."""

import asyncio
import mimetypes
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode, urlsplit
from zlib import crc32

import orjson
from isal import isal_zlib
from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from shoal import __version__
from shoal.base.clock import Clock, SystemClock
from shoal.base.errors import ShoalError
from shoal.base.text import message
from shoal.serve.authentication import is_secure
from shoal.serve.console import charts
from shoal.serve.console import texts as journal_texts
from shoal.serve.console.format import Formats, colour_of, label_of, languages
from shoal.serve.console.forms import CONFIRMED, FIELD, THEMES, ConsoleForm, View, csrf_cookie, csrf_token, view_of
from shoal.serve.console.forms import COOKIE as VIEW_COOKIE
from shoal.serve.console.worker_watch import WorkerWatch
from shoal.serve.resources import crawl, job, node, policy, token, webhook
from shoal.serve.resources.resource import Verb

VERBS: Final = {
    "crawl": crawl.VERBS,
    "dead_letter": job.DEAD_LETTER_VERBS,
    "job": job.VERBS,
    "node": node.VERBS,
    "policy": policy.VERBS,
    "token": token.VERBS,
    "webhook": webhook.VERBS,
}
STATIC: Final = Path(__file__).parents[1] / "static"
FOR_EVER: Final = {"Cache-Control": "public, max-age=31536000, immutable"}
# a script module that a different module imports by its plain name
SHORTLY: Final = {"Cache-Control": "public, max-age=60"}
GZIP: Final = 31  # value of zlib's `wbits` that selects the gzip format
LEVEL: Final = 2


class Asset:
    """One static file."""

    def __init__(self, path: Path) -> None:
        self.body = path.read_bytes()
        self.media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        self.version = f"{crc32(self.body):08x}"

    @cached_property
    def compressed(self) -> bytes:
        return compress(self.body)


class Assets:
    """The static files by their path below the folder; only these files can be requested."""

    def __init__(self, folder: Path = STATIC) -> None:
        self._assets = {
            path.relative_to(folder).as_posix(): Asset(path) for path in folder.rglob("*") if path.is_file()
        }

    def address(self, name: str) -> str:
        """Return the path of a file. The path changes with the content, so that browsers do not use an old copy."""
        return f"/static/{name}?v={self._assets[name].version}"

    def route(self) -> BaseRoute:
        return Route("/static/{name:path}", self.serve, methods=["GET"])

    async def serve(self, request: Request) -> Response:
        asset = self._assets.get(request.path_params["name"])
        if asset is None:
            raise HTTPException(404)
        headers = FOR_EVER if request.query_params.get("v") == asset.version else SHORTLY
        headers = headers | {"Vary": "Accept-Encoding"}
        if accepts_gzip(request):
            return Response(
                asset.compressed, headers=headers | {"Content-Encoding": "gzip"}, media_type=asset.media_type
            )
        return Response(asset.body, headers=headers, media_type=asset.media_type)


def accepts_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


def compress(body: bytes) -> bytes:
    return bytes(isal_zlib.compress(body, LEVEL, GZIP))


TEMPLATES: Final = Path(__file__).parents[1] / "templates"
FRESH: Final = {"Cache-Control": "no-store", "Vary": "Accept-Encoding, Cookie"}
WORTH_COMPRESSING: Final = 1000  # bytes
NOTICE: Final = "shoal_notice"
NOTICE_SECONDS: Final = 30
YEAR: Final = 31_536_000
EMPTY_TOKEN: Final = 'value="" data-csrf'
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; frame-src 'self';"
    " form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)


@dataclass(frozen=True, slots=True)
class Section:
    """An entry of the navigation; `key` opens it."""

    name: str
    path: str
    title: str
    key: str


SECTIONS: Final = (
    Section("overview", "/", message("Overview"), "o"),
    Section("crawls", "/crawls", message("Crawls"), "c"),
    Section("jobs", "/jobs", message("Jobs"), "j"),
    Section("fleet", "/fleet", message("Fleet"), "f"),
    Section("policies", "/policies", message("Policies"), "p"),
    Section("analyses", "/analyses", message("Analyses"), "a"),
    Section("events", "/events", message("Events"), "e"),
    Section("settings", "/settings", message("Settings"), "s"),
)


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence that is shown once, on the page after an action."""

    text: str
    is_problem: bool = False


class Shell:
    """Renders the pages of the console. `present` contains the names of this server's sections. If `public_url` has a
    path, this path is the prefix of all URLs, as needed behind a proxy."""

    def __init__(
        self,
        present: Iterable[str],
        clock: Clock | None = None,
        public_url: str = "",
        worker_watch: WorkerWatch | None = None,
    ) -> None:
        self.prefix = prefix_of(public_url)
        self._clock = clock or SystemClock()
        self._worker_watch = worker_watch
        names = set(present)
        self._sections = [section for section in SECTIONS if section.name in names]

    @cached_property
    def assets(self) -> Assets:
        """The static files. Static files, templates and languages are read on first use, because commands that call the
        API in their own process never show a page."""
        return Assets()

    async def compile_templates(self) -> None:
        """Compile all templates before they are needed. A page consists of several templates, and a request that had to
        compile them all would block all other requests."""
        environment = self._environment
        for name in environment.list_templates():
            await asyncio.to_thread(environment.get_template, name)

    def view(self, request: Request) -> View:
        return view_of(request)

    def formats(self, view: View) -> Formats:
        return Formats(view.language, self._clock.micros())

    def url(self, path: str, **query: object) -> str:
        """Return the URL of a path of this server. Query parameters without a value are left out."""
        given = {name: value for name, value in query.items() if value not in (None, "")}
        return f"{self.prefix}{path}" + (f"?{urlencode(given)}" if given else "")

    def page(
        self, request: Request, template: str, context: Mapping[str, Any], status: int = 200, section: str = ""
    ) -> Response:
        """Render a page."""
        view, token = self.view(request), csrf_token(request)
        notice, shown = _notice_in(request), self._common(view)
        path = request.scope["path"] + (f"?{query}" if (query := request.url.query) else "")
        shown |= {"csrf": token, "notice": notice, "here": path, "section": section, "topic": None, "is_live": False}
        html = self._environment.get_template(f"console/{template}").render({**shown, **context})
        response = self._html(request, html, status)
        if getattr(request.state, "caller", None) is not None and request.cookies.get(csrf_cookie(request)) != token:
            secure = is_secure(request)
            response.set_cookie(csrf_cookie(request), token, httponly=True, samesite="strict", secure=secure)
        if notice is not None:
            response.delete_cookie(NOTICE, httponly=True, samesite="strict")
        return response

    def region(self, view: View, name: str, context: Mapping[str, Any]) -> str:
        """Render one live region of a page."""
        template = self._environment.get_template(f"console/regions/{name}.html")
        return template.render({**self._common(view), **context})

    def redirect(self, path: str, notice: Notice | None = None) -> Response:
        """Respond to a posted form with a redirect to a page that shows the notice."""
        response = RedirectResponse(self.url(path), 303, headers={"Cache-Control": "no-store"})
        if notice is not None:
            value = quote(orjson.dumps([notice.text[:1500], notice.is_problem]), safe="")
            response.set_cookie(NOTICE, value, max_age=NOTICE_SECONDS, httponly=True, samesite="strict")
        return response

    def refused(self, path: str, error: ShoalError) -> Response:
        """Respond to a posted form with an error that the reader can fix; raise all other errors."""
        if error.response.http_status >= 500:
            raise error
        return self.redirect(path, Notice(sentence(error.message), is_problem=True))

    def confirm(self, request: Request, form: ConsoleForm, verb: Verb, question: str = "") -> Response:
        """Ask for confirmation of an action that cannot be undone, if the browser did not ask by script. `question` is
        a translated question that replaces the verb's question."""
        language = self.view(request).language
        context: dict[str, Any] = {"question": question or language(verb.question), "fields": list(form)}
        context |= {"explanation": language(verb.explanation), "button": language(verb.label)}
        context |= {"action": request.scope["path"], "back": back_path(request, self.prefix)}
        return self.page(request, "confirm.html", context)

    def error(self, request: Request, error: ShoalError) -> Response:
        """Show an error page: what is wrong, and what to do."""
        status = error.response.http_status
        context = {"status": status, "problem": sentence(error.message), "back": back_path(request, self.prefix)}
        return self.page(request, "error.html", context, status)

    def missing(self, request: Request, status: int) -> Response:
        """Show the error page for an unknown path."""
        problem = self.view(request).language("There is no page at this address.")
        return self.page(request, "error.html", {"status": status, "problem": problem, "back": "/"}, status)

    def failed(self, request: Request) -> Response:
        """Show the page for an unexpected error."""
        problem = self.view(request).language("The server could not show this page; the reason is in the server log.")
        context = {"status": 500, "problem": problem, "back": back_path(request, self.prefix)}
        return self.page(request, "error.html", context, 500)

    def remember(self, response: Response, theme: str, code: str) -> None:
        """Store the preferences of a browser in a cookie, which the script also reads."""
        chosen = theme if theme in THEMES else "system"
        value = f"{chosen}.{code if code in languages() else ''}"
        response.set_cookie(VIEW_COOKIE, value, max_age=YEAR, samesite="lax")

    def _common(self, view: View) -> dict[str, Any]:
        return {
            "view": view,
            "t": view.language,
            "plural": view.language.plural,
            "f": self.formats(view),
            "sections": self._sections,
        }

    def _html(self, request: Request, html: str, status: int) -> Response:
        headers = FRESH | {"Content-Security-Policy": POLICY}
        body = html.encode("utf-8", "replace")
        if len(body) < WORTH_COMPRESSING or not accepts_gzip(request):
            return HTMLResponse(body, status, headers)
        return HTMLResponse(compress(body), status, headers | {"Content-Encoding": "gzip"})

    @cached_property
    def _environment(self) -> Environment:
        environment = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.globals |= {
            "asset": lambda name: self.prefix + self.assets.address(name),
            "url": self.url,
            "version": __version__,
            "worker_watch": self._worker_watch,
            "languages": languages(),
            "themes": THEMES,
            "csrf_field": FIELD,
            "confirmed_field": CONFIRMED,
            "region": self._region,
            "chart": charts,
            "journal_text": journal_texts.text_of,
            "page_error": journal_texts.page_error,
            "gate_reason": journal_texts.gate_reason,
            "verbs": VERBS,
            "label_of": label_of,
            "colour_of": colour_of,
        }
        return environment

    @staticmethod
    @pass_context
    def _region(context: Context, name: str) -> Markup:
        """Render a live region inside its page, with a hash that tells the feed which version the browser has."""
        html = context.environment.get_template(f"console/regions/{name}.html").render(context.get_all())
        version = region_hash(html)
        # A region is identical for all readers, so the feed sends it without a CSRF token; the script adds the token.
        html = html.replace(EMPTY_TOKEN, f'value="{context["csrf"]}" data-csrf')
        return Markup('<div data-region="{}" data-hash="{}">{}</div>').format(name, version, Markup(html))


def region_hash(html: str) -> str:
    return f"{crc32(html.encode('utf-8', 'replace')):08x}"


def prefix_of(public_url: str) -> str:
    """Return the path of the public URL, without a trailing slash."""
    return urlsplit(public_url).path.rstrip("/")


def local_path(text: str) -> str:
    """Return the text if it is a path of this server; return `/` for any text that could lead to a different server."""
    if not text.startswith("/") or text.startswith(("//", "/\\")) or not text.isprintable() or len(text) > 2000:
        return "/"
    return text


def back_path(request: Request, prefix: str) -> str:
    """Return the path of the page from which the reader comes."""
    came_from = urlsplit(request.headers.get("referer", ""))
    if came_from.netloc != request.headers.get("host") or came_from.path == prefix + request.scope["path"]:
        return "/"
    path = local_path(came_from.path.removeprefix(prefix) or "/")
    return path + (f"?{came_from.query}" if came_from.query else "")


def sentence(text: str) -> str:
    """Return an error message as a sentence. If it begins with user input or with the name of an option, such as `foo:`
    or `max_pages`, this beginning is not changed."""
    word = text.partition(" ")[0].rstrip(",;.")
    text = text[:1].upper() + text[1:] if word.isalpha() else text
    text = f"URL{text[3:]}" if word == "url" else text
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."


def _notice_in(request: Request) -> Notice | None:
    value = request.cookies.get(NOTICE)
    if value is None:
        return None
    try:
        text, is_problem = orjson.loads(unquote(value))
    except ValueError:
        return None
    return Notice(str(text), bool(is_problem))


async def carry_out(
    shell: Shell, back: str, verb: Callable[[], Awaitable[object]], done: str = "", then: str = ""
) -> Response:
    """Call a verb and return to the page `back`, which shows the outcome as a notice: `done`, or the text that the verb
    returned. An error that the reader can fix is also shown as a notice. If there was no error and `then` is given, go
    to the page `then` instead."""
    try:
        said = await verb()
    except ShoalError as error:
        return shell.refused(back, error)
    return shell.redirect(then or back, Notice(done or str(said)))
