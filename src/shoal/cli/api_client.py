"""The REST client of the management commands. It calls a server, or it runs the same application in this process,
directly on the store. So the REST API can do everything that a command can."""

import asyncio
import re
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, unquote, urlencode

import click
import orjson
from msgspec.structs import replace

from shoal.base.errors import (
    BackendUnavailable,
    BadConfig,
    NotFound,
    ShoalError,
    Unauthenticated,
    UsageError,
    from_problem,
)
from shoal.base.settings import ClientSettings, Settings
from shoal.base.settings_loader import load
from shoal.base.text import shorten

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])
JSON = "application/json"


class Send(Protocol):
    """A function that sends a request (method, target, body) and returns the response (status, body)."""

    async def __call__(self, method: str, target: str, body: bytes, kind: str = JSON) -> tuple[int, bytes]: ...


PAGE = 200  # items per page of a list
TIMEOUT = timedelta(seconds=60)
FILE_TIMEOUT = timedelta(minutes=10)  # long: after a timeout the client does not know whether the file was accepted
LARGEST_ANSWER = 256_000_000
MOST_SEARCHED = 5_000  # items of a list among which an abbreviated id is looked up
LAST = "last"
OLDEST_FIRST = "policy"  # the list of policies begins with the oldest, all other lists with the newest
SEARCHED = {  # kinds whose ids can be abbreviated, and their lists
    "analysis": "/api/v1/analyses",
    "crawl": "/api/v1/crawls",
    "job": "/api/v1/jobs",
    "job group": "/api/v1/groups",
    "policy": "/api/v1/policies",
}
LISTS = {
    "analysis": "analyses ls",
    "crawl": "crawls ls",
    "gate": "gates ls",
    "job": "jobs ls",
    "job group": "jobs groups",
    "node": "nodes ls",
    "policy": "policies ls",
    "quota": "jobs quota ls",
    "token": "tokens ls",
    "webhook": "webhooks ls",
}
SERVER_FIX = "check that it is running and that SHOAL_SERVER or --server is correct"
TLS_FIX = f"{SERVER_FIX}; for a private certificate authority, set SSL_CERT_FILE"
LOGIN_FIX = "pass a valid token with --token-file, --token or SHOAL_TOKEN"


@dataclass(frozen=True, slots=True)
class ApiTarget:
    """The store or server that the flags of a command select."""

    store: str | None = None
    server: str | None = None
    token: str | None = None
    token_file: str | None = None

    def settings(self) -> Settings:
        if self.store is not None and self.server is not None:
            raise UsageError("--store and --server cannot be combined", "leave one of them out")
        flags = {"DATABASE_URL": self.store, "SHOAL_SERVER": self.server}
        return load(flags | {"SHOAL_TOKEN": self.token, "SHOAL_TOKEN_FILE": self.token_file}).settings

    def is_remote(self, settings: Settings) -> bool:
        """Return whether to call a server. If a flag names a store, the store takes precedence."""
        return bool(settings.client.server) and self.store is None

    def command(self, *words: str) -> str:
        """Return a command line for the same store or server, to show to the user. It lacks the token, which is
        secret."""
        flags = {"--store": self.store, "--server": self.server, "--token-file": self.token_file}
        return shlex.join(
            ["shoal", *words, *(word for flag, value in flags.items() if value for word in (flag, value))]
        )


def settings_of_store(store: str | None, what: str) -> Settings:
    """Return the settings for a command that only works on a store. Raise `UsageError` if SHOAL_SERVER is set and no
    store is named, because the user then does not mean the default store."""
    loaded = load({"DATABASE_URL": store})
    if loaded.settings.client.server and loaded.sources["DATABASE_URL"] == "default":
        fix = "choose the store with --store or DATABASE_URL, or unset SHOAL_SERVER"
        raise UsageError(f"`{what}` works on a store directly, but SHOAL_SERVER is set", fix)
    return loaded.settings


store_option = click.option(
    "--store",
    metavar="URL",
    help="Store: sqlite:////absolute/path, sqlite:///relative/path or postgresql://…; overrides DATABASE_URL.",
)


def with_server(command: C) -> C:
    """Add the flags that select a server to a command. The command gets their values as the argument `target`."""

    @click.option("--server", metavar="URL", help="Use this controller; overrides SHOAL_SERVER.")
    @click.option("--token", metavar="TOKEN", help="API token for the controller; overrides SHOAL_TOKEN.")
    @click.option("--token-file", metavar="FILE", help="Read the API token from this file; overrides SHOAL_TOKEN_FILE.")
    @wraps(command)
    def with_target(*args: Any, **more: Any) -> Any:
        flags = {name: more.pop(name, None) for name in ("store", "server", "token", "token_file")}
        return command(*args, target=ApiTarget(**flags), **more)

    return with_target  # type: ignore[return-value]


def with_api_target(command: C) -> C:
    """Add the flags that select a store or a server. The command gets their values as the argument `target`."""
    about = "Use this store instead of a controller; overrides DATABASE_URL."
    return with_server(click.option("--store", metavar="URL", help=about)(command))


class ApiClient:
    """The REST API for commands. Problem documents are raised as the errors that they describe. If an id is not found,
    but is `last` or the beginning of exactly one id, the request is repeated with the whole id."""

    def __init__(self, send: Send, place: str) -> None:
        """`place`: the name of the server or the store in error messages."""
        self._send = send
        self.place = place
        self._whole_ids: dict[str, str] = {}  # whole ids by abbreviation; both are quoted as in a path or a query

    async def get(self, path: str, **query: Any) -> Any:
        given = [(name, value) for name, value in query.items() if value is not None]
        return await self._ask("GET", f"{path}?{urlencode(given, doseq=True)}" if given else path)

    async def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return await self._ask("POST", path, body)

    async def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        return await self._ask("PATCH", path, body)

    async def put(self, path: str, body: Mapping[str, Any]) -> Any:
        return await self._ask("PUT", path, body)

    async def delete(self, path: str) -> Any:
        return await self._ask("DELETE", path)

    async def upload(self, path: str, file: bytes, kind: str, **query: Any) -> Any:
        """Send a file."""
        return _decode("POST", *await self._send("POST", f"{path}?{urlencode(query)}", file, kind))

    async def download(self, path: str, **query: Any) -> bytes:
        """Get a file."""
        given = {name: value for name, value in query.items() if value is not None}
        while True:
            target = self._with_whole_ids(f"{path}?{urlencode(given)}")
            status, answer = await self._send("GET", target, b"")
            try:
                return answer if status == 200 else bytes(_decode("GET", status, answer))
            except NotFound as error:
                await self._learn_id(error)

    async def list(self, path: str, limit: int, **query: Any) -> tuple[list[Any], str | None]:
        """Return up to `limit` items of a list, from as many pages as needed, and the cursor of the rest."""
        items: list[Any] = []
        cursor = query.pop("cursor", None)
        while len(items) < limit:
            page = await self.get(path, limit=min(PAGE, limit - len(items)), cursor=cursor, **query)
            items += page["items"]
            is_over = page["next"] in (None, cursor)  # an unchanged cursor means that more items may follow later
            cursor = page["next"]
            if is_over:
                break
        return items, cursor

    async def _ask(self, method: str, target: str, body: Mapping[str, Any] | None = None) -> Any:
        content = b"" if body is None else orjson.dumps(body)
        while True:
            try:
                return _decode(method, *await self._send(method, self._with_whole_ids(target), content))
            except NotFound as error:
                await self._learn_id(error)

    def _with_whole_ids(self, target: str) -> str:
        parts = re.split("([/?&=])", target) if self._whole_ids else [target]
        return "".join([self._whole_ids.get(part, part) for part in parts])

    async def _learn_id(self, error: NotFound) -> None:
        """Find the id that an abbreviation means, and store it in `_whole_ids`. Raise `error` if no id is meant."""
        kind, text = str(error.facts.get("kind")), str(error.facts.get("id"))
        if kind not in SEARCHED or quote(text, safe="") in self._whole_ids:
            raise error
        if (found := await self._whole_id(kind, text)) == text:
            raise error
        self._whole_ids[quote(text, safe="")] = quote(found, safe="")

    async def _whole_id(self, kind: str, text: str) -> str:
        """Return the id that an abbreviation means: `last` means the newest id, and the beginning of exactly one id
        means that id. Return the text unchanged if no id is meant. Raise `UsageError` if several ids begin with the
        text."""
        is_first = text == LAST and kind != OLDEST_FIRST
        items, more = await self.list(SEARCHED[kind], 1 if is_first else MOST_SEARCHED)
        ids = [str(item["id"]) for item in items]
        if text == LAST:
            return text if not ids or (more is not None and not is_first) else ids[0 if is_first else -1]
        found = [one for one in ids if one.startswith(text)]
        if len(found) > 1 or (found and more is not None):
            others = f"{found[0]} and {found[1]}" if len(found) > 1 else f"{found[0]} and perhaps others"
            raise UsageError(f'"{shorten(text)}" is the beginning of {others}', "write more of the id")
        return found[0] if found else text


def _decode(method: str, status: int, answer: bytes) -> Any:
    """Parse a response. If it describes an error, raise the error."""
    try:
        decoded = orjson.loads(answer) if answer else None
    except orjson.JSONDecodeError:
        raise _no_shoal(f"the response to {method} is not JSON") from None
    if 200 <= status < 300:
        return decoded
    if not isinstance(decoded, dict) or 300 <= status < 400:
        raise _no_shoal(f"{method} returned status {status}")
    raise from_problem(decoded, status)


def at(path: str, *parts: str) -> str:
    """Return the path with its braces filled in. Raise an error for parts that would change the path."""
    for part in parts:
        if part in ("", ".", "..") or "/" in part:
            raise UsageError(f'"{part}" is not an id', "use an id that `ls` shows")
    return path.format(*(quote(part, safe="") for part in parts))


def run_on(target: ApiTarget, work: Callable[[ApiClient], Awaitable[T]], *, existing: bool = True) -> T:
    """Run `work` on the store or server that flags and settings select. If they select a store, it must exist unless
    `existing` is False."""

    async def run() -> T:
        settings = target.settings()
        place = ""
        try:
            async with _remote(settings.client) if target.is_remote(settings) else _inside(settings, existing) as api:
                place = api.place
                return await work(api)
        except NotFound as error:
            if (ls := LISTS.get(str(error.facts.get("kind")))) is None:
                raise
            raise error.within(place, f"list them with `{target.command(*ls.split())}`") from None

    return asyncio.run(run())


@asynccontextmanager
async def _inside(settings: Settings, existing: bool) -> AsyncIterator[ApiClient]:
    """Open the application in this process, on the store. Requests act as the local user."""
    from shoal.access.token import local_caller
    from shoal.app import opened
    from shoal.process.lifetime import quiet
    from shoal.serve.application import application
    from shoal.serve.authentication import InProcessAuthenticator
    from shoal.serve.endpoint import routes_of

    async with opened(settings, quiet(settings), existing=existing) as app:
        routes = routes_of(app.rest_api.endpoint_groups, settings.serve.max_request_bytes)
        authenticator = InProcessAuthenticator(local_caller())
        api = application(routes, app.clock, app.signals, authenticator, audit_log=app.access.audit_log)

        async def send(method: str, target: str, body: bytes, kind: str = JSON) -> tuple[int, bytes]:
            return await _call(api, method, target, body, kind)

        yield ApiClient(send, app.database.name)


async def _call(application: Any, method: str, target: str, body: bytes, kind: str) -> tuple[int, bytes]:
    """Send one request to an application in this process."""
    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"localhost"), (b"content-type", kind.encode())],
        "client": None,
        "server": None,
    }
    status, pieces = 500, []

    asked = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> dict[str, Any]:
        for message in asked:
            return message
        await asyncio.Event().wait()  # never disconnect: wait for the end of the response
        raise AssertionError("unreachable")

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            pieces.append(message.get("body", b""))

    await application(scope, receive, send)
    return status, b"".join(pieces)


@asynccontextmanager
async def _remote(settings: ClientSettings) -> AsyncIterator[ApiClient]:
    """Open a connection to a controller, through the egress module. Any address is allowed, because the operator chose
    it."""
    from shoal.base.url import UrlRefusal, canonical
    from shoal.egress import AddressRule, Egress, Failure, Limits, Request, endpoint

    server = settings.server.rstrip("/")
    url = canonical(f"{server}/")
    if isinstance(url, UrlRefusal):
        raise BadConfig("SHOAL_SERVER", url.problem, "write it as https://host:port")
    token = token_of(settings)
    login = [("Authorization", f"Bearer {token}")] if token else []
    limits = Limits(total_timeout=TIMEOUT, idle_timeout=TIMEOUT, max_body_bytes=LARGEST_ANSWER)
    for_files = replace(limits, total_timeout=FILE_TIMEOUT, idle_timeout=FILE_TIMEOUT)
    egress = Egress(AddressRule(named=frozenset({endpoint(url)})), limits)

    async def send(method: str, target: str, body: bytes, kind: str = JSON) -> tuple[int, bytes]:
        headers, limits_used = (("Content-Type", kind), *login), limits if kind == JSON else for_files
        outcome = await egress.fetch(Request(server + target, method, headers, body, limits_used))
        if isinstance(outcome, Failure):
            why = f"{outcome.code}: {outcome.message.rstrip('.')}"
            raise BackendUnavailable(server, why, TLS_FIX if outcome.code.startswith("tls_") else SERVER_FIX)
        return outcome.status, outcome.raw

    try:
        yield ApiClient(send, server)
    except Unauthenticated:
        raise Unauthenticated(LOGIN_FIX) from None
    finally:
        egress.close()


def token_of(settings: ClientSettings) -> str:
    """Return the configured token; empty if there is none."""
    token, file = settings.token, settings.token_file
    if not token and file is not None:
        try:
            token = file.read_text("utf-8").strip()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "not a text file"
            fix = "use a file that contains only the token"
            raise BadConfig("SHOAL_TOKEN_FILE", f"names {file}, which cannot be read ({why})", fix) from None
    if token and not re.fullmatch(r"[\x21-\x7e]+", token):
        raise BadConfig(
            "SHOAL_TOKEN",
            "contains a character that is not allowed in a token",
            "copy the whole token again, starting at shl_",
        )
    return token


def _no_shoal(why: str) -> ShoalError:
    return BackendUnavailable(
        "the server", why, "check that SHOAL_SERVER or --server is the address of a Shoal controller"
    )
