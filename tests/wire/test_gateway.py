"""The gateway with a real store and a real server: authentication, allowed origins, and what errors reveal."""

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route
from starlette.types import Message

from shoal.access.limits import MOST_FAILURES, AuthThrottle
from shoal.access.token import TokenRequest, TokenScope, mint
from shoal.access.tokens import Tokens
from shoal.app import opened
from shoal.base.clock import FakeClock
from shoal.base.errors import BadConfig, InvalidInput, NotAllowed
from shoal.base.settings_loader import load
from shoal.process.controller import write_first_token
from shoal.process.http import check_exposure
from shoal.serve.api import GROUPS
from shoal.serve.application import CHECK_EVERY_SECONDS, application
from shoal.serve.authentication import CallerRefused, TokenAuthenticator
from shoal.serve.connections import Certificate, tls_of
from shoal.serve.endpoint import table_of
from shoal.serve.health import HealthApi
from tests.support.controller import CRAWLS, ME, ServedController, served_controller
from tests.support.nodes import register
from tests.support.servers import free_port

TLS = Path(__file__).parents[1] / "support" / "tls"
POLICIES = "/api/v1/policies"
GUARDED = [
    ("GET", "/"),
    ("GET", "/crawls"),
    ("GET", "/console/feed"),
    ("POST", "/console/preferences"),
    ("GET", CRAWLS),
    ("POST", CRAWLS),
    ("GET", "/api/v1/tokens"),
    ("POST", "/api/v1/tokens"),
    ("GET", "/api/v1/audit-log"),
    ("GET", "/metrics"),
    ("GET", "/readyz"),
    ("GET", "/openapi.json"),
    ("GET", "/docs"),
    ("GET", "/nowhere"),
    ("DELETE", "/nowhere"),
]


@pytest.fixture
async def shop(store_url: str) -> AsyncIterator[ServedController]:
    async with served_controller(store_url) as shop:
        yield shop


@pytest.fixture
async def lite(sqlite_url: str) -> AsyncIterator[ServedController]:
    """Yield an API with a SQLite store, for tests that do not depend on the kind of store."""
    async with served_controller(sqlite_url) as shop:
        yield shop


# This machine


async def test_until_the_first_token_this_machine_needs_none_and_then_everybody_does(lite: ServedController) -> None:
    assert (await lite.ask()).status == 200
    made = await lite.ask("/api/v1/tokens", method="POST", body=b'{"name": "me", "role": "admin"}')
    assert (made.status, made.headers["cache-control"]) == (201, "no-store")
    assert (await lite.ask()).status == 401
    assert (await lite.ask(token=made.json["token"])).status == 200


@pytest.mark.parametrize("host", ["evil.test", "evil.test:8700", "127.0.0.1.evil.test", "0.0.0.0", "[::2]", "", "[::1"])
async def test_a_name_that_others_may_point_here_is_not_answered(lite: ServedController, host: str) -> None:
    answer = await lite.ask(headers={"Host": host})
    assert (answer.status, answer.json["code"]) == (403, "not_allowed")
    token = await lite.token("admin")
    assert (await lite.ask(token=token, headers={"Host": host})).status == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1", "127.8.8.8:1", "[::1]:8700"])
async def test_every_name_of_this_machine_is_answered(lite: ServedController, host: str) -> None:
    assert (await lite.ask(headers={"Host": host})).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.test"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_a_page_of_another_site_changes_nothing(lite: ServedController, headers: dict[str, str]) -> None:
    body = b'{"seeds": ["https://example.com/"]}'
    assert (await lite.ask(method="POST", body=body, headers=headers)).status == 403
    token = await lite.token("admin")
    assert (await lite.ask(token=token, method="POST", body=body, headers=headers)).status == 403
    assert (await lite.ask(token=token)).json["items"] == []


async def test_a_page_of_another_site_may_link_to_us_and_not_read_us(lite: ServedController) -> None:
    elsewhere = {"Sec-Fetch-Site": "cross-site"}
    assert (await lite.ask("/", headers=elsewhere | {"Sec-Fetch-Mode": "navigate"})).status == 200
    assert (await lite.ask(headers=elsewhere | {"Sec-Fetch-Mode": "cors"})).status == 403
    assert (await lite.ask(headers={"Origin": "http://evil.test"})).status == 403


@pytest.mark.parametrize("name", ["X-Forwarded-For", "Forwarded", "X-Real-IP"])
async def test_a_request_through_a_proxy_is_not_taken_for_a_local_one(lite: ServedController, name: str) -> None:
    answer = await lite.ask(headers={name: "127.0.0.1"})
    assert (answer.status, answer.json["code"]) == (403, "not_allowed")
    assert "shoal tokens create" in answer.json["detail"]


# Tokens


@pytest.mark.parametrize(("method", "path"), GUARDED)
async def test_with_tokens_only_the_health_checks_are_open(lite: ServedController, method: str, path: str) -> None:
    await lite.token()
    answer = await lite.ask(path, method=method)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == 'Bearer realm="shoal"'
    assert answer.headers["content-type"] == "application/problem+json"
    assert (await lite.ask("/healthz")).status == 200


async def test_a_file_of_policies_has_their_secrets_and_is_only_for_admins(lite: ServedController) -> None:
    form = {"url": "http://example.org/", "frequency": "6h", "crawl_config": {"headers": {"X-Api-Key": "sesame"}}}
    operator, admin = await lite.token("operator"), await lite.token("admin")
    assert (await lite.ask(POLICIES, token=operator, method="POST", body=json.dumps(form).encode())).status == 201
    assert (await lite.ask(f"{POLICIES}/export", token=operator)).status == 403
    assert "sesame" in str((await lite.ask(f"{POLICIES}/export", token=admin)).json)
    [act] = (await lite.ask("/api/v1/audit-log?limit=1", token=admin)).json["items"]
    assert act["act"] == "policies.exported"


@pytest.mark.parametrize("host", ["x/healthz?", "x/metrics?", "127.0.0.1/metrics?", "x/login#", "x/static/"])
async def test_a_host_that_looks_like_an_open_path_opens_nothing(sqlite_url: str, host: str) -> None:
    async with served_controller(sqlite_url, SHOAL_OPEN_PROBES="true") as shop:
        await shop.token()
        for path in (CRAWLS, "/", "/api/v1/tokens", "/nowhere"):
            assert (await shop.ask(path, headers={"Host": host})).status in (401, 403)


async def test_probes_are_open_if_the_operator_says_so(sqlite_url: str) -> None:
    async with served_controller(sqlite_url, SHOAL_OPEN_PROBES="true") as shop:
        await shop.token()
        assert [(await shop.ask(path)).status for path in ("/readyz", "/metrics", CRAWLS)] == [200, 200, 401]


async def test_every_bad_token_gets_the_same_answer(shop: ServedController) -> None:
    valid, revoked, expired = await shop.token(), await shop.token("admin"), await shop.token(expires_in="1ms")
    tokens = shop.app.access.tokens
    found = await tokens.verify(revoked)
    assert found is not None
    await tokens.revoke(found.id, ME, even_last=True)
    unknown = mint()[1]
    wrong = f"shl_{valid.split('_')[1]}_{unknown.split('_')[2]}"
    answers = [await shop.ask(token=token) for token in (revoked, expired, unknown, wrong, "x", valid[:-1])]
    answers.append(await shop.ask())
    assert {answer.status for answer in answers} == {401}
    assert len({answer.text for answer in answers}) == 1


@pytest.mark.parametrize("scheme", ["Basic {}", "Token {}", "{}", "Bearer", "Bearer {} {}", "Bearer\t{}"])
async def test_only_a_bearer_is_read(lite: ServedController, scheme: str) -> None:
    token = await lite.token()
    assert (await lite.ask(headers={"Authorization": scheme.format(token, token)})).status == 401
    assert (await lite.ask(headers={"Authorization": f"bEARER  {token}"})).status == 200


async def test_a_token_in_an_address_is_refused_and_said_to_be_spoilt(lite: ServedController) -> None:
    token = await lite.token("admin")
    answer = await lite.ask(f"{CRAWLS}?token={token}", token=token)
    assert answer.status == 422
    assert "revoke that token" in answer.json["detail"]


@pytest.mark.parametrize(
    ("role", "method", "path", "lacks"),
    [
        ("viewer", "POST", CRAWLS, "write"),
        ("viewer", "GET", "/api/v1/tokens", "admin"),
        ("operator", "POST", "/api/v1/tokens", "admin"),
        ("operator", "GET", "/api/v1/audit-log", "admin"),
        ("bot", "GET", CRAWLS, "read"),
        ("bot", "GET", "/api/v1/analyses/anl_1/artifacts/raw.txt", "read"),
        ("node", "GET", "/metrics", "read"),
        ("viewer", "DELETE", "/nowhere", "write"),
    ],
)
async def test_a_scope_that_is_lacking_is_named(
    lite: ServedController, role: str, method: str, path: str, lacks: str
) -> None:
    answer = await lite.ask(path, await lite.token(role), method=method)
    assert (answer.status, answer.json["code"], answer.json["scope"]) == (403, "not_allowed", lacks)
    assert f"this needs the scope {lacks}" in answer.json["detail"]


async def test_a_caller_with_the_write_scope_may_write(lite: ServedController) -> None:
    body = b'{"seeds": ["https://example.com/"]}'
    assert (await lite.ask(token=await lite.token("operator"), method="POST", body=body)).status == 202


async def test_a_body_of_ten_megabytes_gets_an_answer_whoever_sends_it(lite: ServedController) -> None:
    body = b"x" * 10_000_000
    operator, viewer = await lite.token("operator"), await lite.token("viewer")
    for token, status in ((operator, 413), (viewer, 403), (None, 401), (mint()[1], 401)):
        assert (await lite.ask(token=token, method="POST", body=body)).status == status


async def test_a_repeated_key_among_a_hundred_thousand_is_refused(lite: ServedController) -> None:
    body = b"{%s}" % b",".join(b'"%06d":""' % number for number in (*range(80_000), 79_999))
    answer = await lite.ask("/bot/v1/jobs/pull", await lite.token("bot"), method="POST", body=body)
    assert (answer.status, answer.json["detail"]) == (422, "079999 is given twice; pass it once.")


async def test_a_method_that_a_path_lacks_is_refused_with_all_that_it_has(lite: ServedController) -> None:
    boss = await lite.token("admin")
    has: dict[str, set[str]] = {
        "/login": {"GET", "HEAD", "POST"},
        "/logout": {"POST"},
        "/static/console/console.css": {"GET", "HEAD"},
    }
    for group in (*GROUPS, HealthApi, *map(type, lite.app.console.endpoint_groups)):
        for line in table_of(group):
            more = {line.method, "HEAD"} if line.method == "GET" else {line.method}
            has.setdefault(line.path, set()).update(more)
    # A literal path may also match a parameter: `policies/import` is `policies/{policy_id}`, too.
    patterns = {re.compile(re.sub(r"{.*?}", "[^/]+", path)): methods for path, methods in has.items()}
    for path in (re.sub(r"{.*?}", "x", path) for path in has):
        methods = {one for pattern, known in patterns.items() if pattern.fullmatch(path) for one in known}
        lacking = next(one for one in ("TRACE", "PATCH", "DELETE") if one not in methods)
        answer = await lite.ask(path, boss, method=lacking)
        assert (answer.status, path, set(answer.headers.get("allow", "").split(", "))) == (405, path, methods)
        assert answer.json["code"] == "method_not_allowed"


async def test_too_many_wrong_tokens_have_to_wait_and_right_ones_need_not(lite: ServedController) -> None:
    known, fresh = await lite.token(), await lite.token()
    assert (await lite.ask(token=known)).status == 200
    answers = [await lite.ask(token=mint()[1]) for _ in range(MOST_FAILURES + 5)]
    assert [answer.status for answer in answers] == [401] * MOST_FAILURES + [429] * 5
    assert answers[-1].json["code"] == "rate_limited"
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 10
    assert (await lite.ask(token=known)).status == 200
    assert (await lite.ask(token=fresh)).status == 429
    refused = [signal for signal in lite.signals_seen if isinstance(signal, CallerRefused)]
    assert [signal.waits for signal in refused] == [False] * (MOST_FAILURES - 1) + [True]


async def test_no_token_is_ever_logged(lite: ServedController) -> None:
    token = await lite.token("admin")
    for text in (token, mint()[1], f"{token[:-1]}x"):
        await lite.ask(token=text)
        await lite.ask(f"{CRAWLS}?access={text}")
        await lite.ask("/login", method="POST", body=f"token={text}".encode())
    assert "invalid credential from 127.0.0.1" in lite.log.getvalue()
    assert token.split("_")[2][:-1] not in lite.log.getvalue()


async def test_a_token_that_one_controller_revokes_is_soon_refused_by_the_other(store_url: str) -> None:
    async with served_controller(store_url) as here, served_controller(store_url) as there:
        boss, token = await here.token("admin"), await here.token()
        assert [(await one.ask(token=token)).status for one in (here, there)] == [200, 200]
        token_id = f"tok_{token.split('_')[1]}"
        revoked = await here.ask(f"/api/v1/tokens/{token_id}/revoke", boss, method="POST")
        assert revoked.json["state"] == "revoked"
        assert (await here.ask(token=token)).status == 401
        assert await asyncio.wait_for(until_refused(there, token), 60) == 401


async def until_refused(shop: ServedController, token: str) -> int:
    while (answer := await shop.ask(token=token)).status == 200:
        pass
    return answer.status


async def test_a_stream_ends_soon_after_its_token_is_revoked(sqlite_url: str) -> None:
    clock, more, seen = FakeClock(), asyncio.Queue[bytes](), asyncio.Queue[bytes]()

    async def stream(request: Request) -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            while True:
                yield await more.get()

        return StreamingResponse(pieces())

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await seen.put(message["body"] if message.get("more_body") else b"end")

    settings = load({"DATABASE_URL": sqlite_url}, env={}).settings
    async with opened(settings) as app:
        tokens = Tokens(
            app.database,
            app.access.audit_log,
            clock,
            app.signals,
            app.queue.recovery.release_bot,
        )
        authenticator = TokenAuthenticator(tokens, AuthThrottle(clock), settings.serve, app.signals)
        gateway = application([Route("/stream", stream)], clock, app.signals, authenticator)
        await tokens.create(TokenRequest(name="first", role="admin"), ME)
        minted = await tokens.create(TokenRequest(name="x", role="viewer"), ME)
        login = (b"authorization", f"Bearer {minted.text}".encode())
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/stream",
            "query_string": b"",
            "scheme": "http",
            "headers": [(b"host", b"localhost"), login],
            "client": ("127.0.0.1", 1),
            "root_path": "",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
        }
        streaming = asyncio.create_task(gateway(scope, receive, send))
        for piece in (b"a", b"b"):
            clock.jump(CHECK_EVERY_SECONDS)
            await more.put(piece)
            assert await asyncio.wait_for(seen.get(), 60) == piece
        await tokens.revoke(minted.token.id, ME)
        clock.jump(CHECK_EVERY_SECONDS)
        await more.put(b"secret")
        assert await asyncio.wait_for(seen.get(), 60) == b"end"
        await asyncio.wait_for(streaming, 60)


# REST of tokens


async def test_a_token_is_shown_once_and_listed_without_its_text(shop: ServedController) -> None:
    boss = await shop.token("admin")
    body = json.dumps({"name": "nightly", "scopes": ["read", "bot"], "expires_in": "30d"}).encode()
    made = (await shop.ask("/api/v1/tokens", boss, method="POST", body=body)).json
    assert made["token"].startswith(f"shl_{made['id'].removeprefix('tok_')}_")
    assert (made["scopes"], made["made_by"]) == (["read", "bot"], f"tok_{boss.split('_')[1]}")
    listed = await shop.ask("/api/v1/tokens?limit=1", boss)
    [item] = listed.json["items"]
    shown = (await shop.ask(f"/api/v1/tokens/{made['id']}", boss)).json
    assert item == shown == {name: value for name, value in made.items() if name != "token"}
    assert made["token"] not in listed.text
    rest = (await shop.ask(f"/api/v1/tokens?cursor={listed.json['next']}", boss)).json
    assert [one["name"] for one in rest["items"]] == ["test"]


async def test_the_last_admin_is_revoked_only_by_force(lite: ServedController) -> None:
    boss = await lite.token("admin")
    path = f"/api/v1/tokens/tok_{boss.split('_')[1]}/revoke"
    answer = await lite.ask(path, boss, method="POST")
    assert (answer.status, answer.json["code"]) == (409, "state_conflict")
    assert (await lite.ask(path, boss, method="POST", body=b'{"force": true}')).status == 200
    assert (await lite.ask(token=boss)).status == 401


async def test_the_audit_log_says_who_did_what_from_where(lite: ServedController) -> None:
    boss = await lite.token("admin")
    made = (await lite.ask("/api/v1/tokens", boss, method="POST", body=b'{"name": "x", "role": "bot"}')).json
    log = (await lite.ask(f"/api/v1/audit-log?subject={made['id']}", boss)).json
    [entry] = log["items"]
    assert (entry["act"], entry["who"], entry["address"]) == (
        "token.created",
        f"tok_{boss.split('_')[1]}",
        "127.0.0.1",
    )
    assert made["token"] not in json.dumps(log)


async def test_every_act_that_is_to_be_logged_is(lite: ServedController) -> None:
    boss = await lite.token("admin")

    async def do(method: str, path: str, body: Any = None) -> Any:
        sent = None if body is None else json.dumps(body).encode()
        answer = await lite.ask(f"/api/v1/{path}", boss, method=method, body=sent)
        assert answer.status < 300, answer.text
        return answer.json if method == "POST" else None

    crawl = await do("POST", "crawls", {"seeds": ["https://example.com/"]})
    await do("POST", f"crawls/{crawl['id']}/stop", {"force": True})
    await do("DELETE", f"crawls/{crawl['id']}")
    hook = await do("POST", "webhooks", {"url": "https://receiver.invalid/hook"})
    assert (await do("POST", f"webhooks/{hook['id']}/test"))["delivered"] is False
    await do("PATCH", f"webhooks/{hook['id']}", {"enabled": False})
    await do("POST", f"webhooks/{hook['id']}/rotate")
    span = {"since": "2026-03-01T09:00:00Z", "until": "2026-03-01T12:00:00Z"}
    await do("POST", f"webhooks/{hook['id']}/replay", span)
    await do("DELETE", f"webhooks/{hook['id']}")
    await do("PUT", "quotas/project:a", {"most": 1})
    await do("DELETE", "quotas/project:a")
    await do("POST", "jobs/purge")
    await do("GET", "policies/export")
    await register(lite.app.fleet.nodes, "crawler-1")
    await do("POST", "nodes/crawler-1/commands", {"command": "pause"})
    await do("POST", "nodes/commands", {"command": "resume"})
    log = (await lite.ask("/api/v1/audit-log", boss)).json["items"]
    subjects = {entry["act"]: entry["subject"] for entry in log}
    assert set(subjects) == {
        "token.created",
        *("crawl.removed", "crawl.stopped_by_force"),
        *(
            "webhook.created",
            "webhook.changed",
            "webhook.rotated",
            "webhook.tested",
            "webhook.replayed",
            "webhook.removed",
        ),
        *("quota.set", "quota.removed", "jobs.purged", "policies.exported", "node.command", "node.commands"),
    }
    assert subjects["crawl.removed"] == subjects["crawl.stopped_by_force"] == crawl["id"]
    assert {subjects[f"webhook.{deed}"] for deed in ("created", "tested", "rotated", "replayed", "removed")} == {
        hook["id"]
    }
    assert subjects["quota.set"] == subjects["quota.removed"] == "project:a"


async def test_a_stop_without_force_is_not_in_the_audit_log(lite: ServedController) -> None:
    boss = await lite.token("admin")
    crawl = (await lite.ask(CRAWLS, boss, method="POST", body=b'{"seeds": ["https://example.com/"]}')).json
    assert (await lite.ask(f"{CRAWLS}/{crawl['id']}/stop", boss, method="POST")).status == 202
    assert (await lite.ask(f"/api/v1/audit-log?subject={crawl['id']}", boss)).json["items"] == []


async def test_every_change_by_an_admin_is_logged_and_no_secret_with_it(lite: ServedController) -> None:
    boss = await lite.token("admin")
    body = b'{"url": "https://example.com/hook"}'
    made = (await lite.ask("/api/v1/webhooks", boss, method="POST", body=body)).json
    assert (await lite.ask(f"/api/v1/webhooks/{made['id']}", boss, method="DELETE")).status == 204
    assert (await lite.ask(f"/api/v1/webhooks/{made['id']}", boss, method="DELETE")).status == 404
    log = (await lite.ask(f"/api/v1/audit-log?subject={made['id']}", boss)).json["items"]
    assert [(entry["act"], entry["who"]) for entry in log] == [
        ("webhook.removed", f"tok_{boss.split('_')[1]}"),
        ("webhook.created", f"tok_{boss.split('_')[1]}"),
    ]
    assert made["secret"] not in json.dumps(log)


@pytest.mark.parametrize("path", ["/api/v1/tokens/tok_nothing", "/api/v1/tokens/tok_nothing/revoke"])
async def test_an_unknown_token_is_answered_404(lite: ServedController, path: str) -> None:
    answer = await lite.ask(path, await lite.token("admin"), method="POST" if "revoke" in path else "GET")
    assert (answer.status, answer.json["code"]) == (404, "not_found")


# The console


async def test_a_person_is_led_to_the_login_and_in_by_a_cookie_that_scripts_never_see(lite: ServedController) -> None:
    token = await lite.token()
    led = await lite.ask("/", headers={"Accept": "text/html,*/*"})
    assert (led.status, led.headers["location"]) == (303, "/login")
    page = await lite.ask("/login")
    assert page.status == 200
    assert 'method="post" action="/login">' in page.text
    entered = await lite.ask("/login", method="POST", body=f"token={token}".encode())
    assert (entered.status, entered.headers["location"]) == (303, "/")
    cookie, *marks = [part.strip() for part in entered.headers["set-cookie"].split(";")]
    assert {mark.lower() for mark in marks} == {"httponly", "path=/", "samesite=strict"}
    console = await lite.ask("/", headers={"Cookie": cookie})
    assert console.status == 200
    assert '<form method="post" action="/logout">' in console.text


async def test_a_wrong_token_at_the_login_is_reported_and_counted(lite: ServedController) -> None:
    bot = await lite.token("bot")
    answers = [
        await lite.ask("/login", method="POST", body=f"token={mint()[1]}".encode()) for _ in range(MOST_FAILURES)
    ]
    assert {answer.status for answer in answers} == {401}
    assert "That is not a valid token." in answers[0].text
    assert "set-cookie" not in answers[0].headers
    assert (await lite.ask("/login", method="POST", body=f"token={bot}".encode())).status == 429


async def test_a_token_that_may_not_look_does_not_come_in(lite: ServedController) -> None:
    answer = await lite.ask("/login", method="POST", body=f"token={await lite.token('bot')}".encode())
    assert answer.status == 403
    assert "This token does not have the scope read" in answer.text


@pytest.mark.parametrize("body", [b"", b"x" * 5000, b"token=%ff%fe", b"a=1&b=2&c=3&d=4&e=5&f=6", b"\xff\xff"])
async def test_a_strange_form_at_the_login_is_refused(lite: ServedController, body: bytes) -> None:
    await lite.token()
    assert (await lite.ask("/login", method="POST", body=body)).status in (401, 413)


async def test_a_cookie_alone_writes_nothing_unless_our_own_page_sends_it(lite: ServedController) -> None:
    cookie = {"Cookie": f"shoal_token={await lite.token('operator')}"}
    body = b'{"seeds": ["https://example.com/"]}'
    for foreign in ({}, {"Origin": "http://evil.test"}, {"Sec-Fetch-Site": "cross-site"}):
        assert (await lite.ask(method="POST", body=body, headers=cookie | foreign)).status == 403
    ours = {"Origin": f"http://127.0.0.1:{lite.port}", "Sec-Fetch-Site": "same-origin"}
    assert (await lite.ask(method="POST", body=body, headers=cookie | ours)).status == 202


async def test_logging_out_removes_the_cookie(lite: ServedController) -> None:
    cookie = {"Cookie": f"shoal_token={await lite.token()}", "Sec-Fetch-Site": "same-origin"}
    left = await lite.ask("/logout", method="POST", headers=cookie)
    assert (left.status, left.headers["location"]) == (303, "/login")
    assert 'shoal_token=""; ' in left.headers["set-cookie"]
    assert "Max-Age=0" in left.headers["set-cookie"]


# TLS and other addresses


def trusting(authority: str = "loopback_authority.pem") -> ssl.SSLContext:
    return ssl.create_default_context(cafile=TLS / authority)


def tls_flags(name: str = "loopback.pem") -> dict[str, str]:
    return {"SHOAL_TLS_CERT": str(TLS / name), "SHOAL_TLS_KEY": str(TLS / name)}


async def test_it_serves_over_tls_with_the_certificate_it_was_given(sqlite_url: str) -> None:
    async with served_controller(sqlite_url, tls=trusting(), **tls_flags()) as shop:
        token = await shop.token()
        assert (await shop.ask(token=token)).status == 200
        entered = await shop.ask("/login", method="POST", body=f"token={token}".encode())
        assert entered.headers["set-cookie"].startswith("__Host-shoal_token=")
        assert "Secure" in entered.headers["set-cookie"]
        cookie = {"Cookie": entered.headers["set-cookie"].partition(";")[0]}
        assert (await shop.ask("/", headers=cookie)).status == 200


async def test_tls_older_than_1_2_is_refused(sqlite_url: str) -> None:
    old = trusting()
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    async with served_controller(sqlite_url, tls=old, **tls_flags()) as shop:
        with pytest.raises(ssl.SSLError):
            await shop.ask("/healthz")


def test_a_certificate_that_cannot_be_used_is_reported_by_its_setting(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").touch()
    (tmp_path / "locked.pem").write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\n")
    (tmp_path / "torn.pem").write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    good = TLS / "loopback.pem"
    for cert, key, says in (
        (tmp_path / "none.pem", good, "SHOAL_TLS_CERT names .*none.pem, which cannot be read"),
        (tmp_path / "empty.pem", good, "SHOAL_TLS_CERT names .*, which contains no certificate"),
        (good, tmp_path / "empty.pem", "SHOAL_TLS_KEY names .*, which contains no private key"),
        (good, tmp_path / "locked.pem", "SHOAL_TLS_KEY names .*, which is encrypted with a password"),
        (good, TLS / "good.pem", "SHOAL_TLS_KEY does not match SHOAL_TLS_CERT"),
        (tmp_path / "torn.pem", good, "SHOAL_TLS_CERT and SHOAL_TLS_KEY cannot be used together"),
    ):
        flags = {"SHOAL_TLS_CERT": str(cert), "SHOAL_TLS_KEY": str(key)}
        with pytest.raises(BadConfig, match=says):
            tls_of(load(flags, env={}).settings.serve)


def shown_by(server: ssl.SSLContext) -> bytes | None:
    """The certificate that a caller sees."""
    caller = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    caller.check_hostname, caller.verify_mode = False, ssl.CERT_NONE
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [caller.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)]
    for end in (0, 1, 0, 1):
        with suppress(ssl.SSLWantReadError):
            ends[end].do_handshake()
    return ends[0].getpeercert(binary_form=True)


async def test_a_certificate_that_was_replaced_is_shown_from_then_on(tmp_path: Path) -> None:
    file = tmp_path / "pair.pem"
    file.write_bytes((TLS / "loopback.pem").read_bytes())
    settings = load({"SHOAL_TLS_CERT": str(file), "SHOAL_TLS_KEY": str(file)}, env={}).settings.serve
    context = tls_of(settings)
    assert context is not None
    chore, first = Certificate(context, settings), shown_by(context)
    assert (await chore.run_once()).did == ""
    file.write_bytes((TLS / "loopback_self_signed.pem").read_bytes())
    assert (await chore.run_once()).did == "reloaded"
    second = shown_by(context)
    assert second not in (None, first)
    file.write_text("half of it")
    with pytest.raises(BadConfig, match="contains no certificate"):
        await chore.run_once()
    assert shown_by(context) == second


@pytest.mark.parametrize("host", ["0.0.0.0", "", "[::]", "192.0.2.1"])
async def test_without_a_token_no_other_address_is_opened(
    sqlite_url: str, host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = load({"DATABASE_URL": sqlite_url, "SHOAL_LISTEN": f"{host}:{free_port()}"}, env={}).settings
    async with opened(settings) as app:
        with pytest.raises(NotAllowed, match="shoal tokens create --role admin"):
            await check_exposure(app, app.settings.serve)
        await app.access.tokens.create(TokenRequest(name="me", role="admin"), ME)
        await check_exposure(app, app.settings.serve)
    assert "SHOAL_TLS_CERT" in capsys.readouterr().err


async def test_the_first_token_of_a_store_is_written_to_a_file_once(
    sqlite_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = load({"DATABASE_URL": sqlite_url, "SHOAL_LISTEN": f"0.0.0.0:{free_port()}"}, env={}).settings
    file = tmp_path / "new" / "token"
    async with opened(settings) as app:
        with pytest.raises(BadConfig, match="cannot be written"):
            await write_first_token(app, Path("/dev/null/token"))
        (tmp_path / "mine").write_text("my own\n")
        with pytest.raises(InvalidInput, match=r"--first-token-file .* does not look like an output of Shoal's"):
            await write_first_token(app, tmp_path / "mine")
        assert not await app.access.tokens.any_made()
        await write_first_token(app, file)
        await check_exposure(app, app.settings.serve)
        token = await app.access.tokens.verify(file.read_text().strip())
        assert token is not None
        assert TokenScope.ADMIN in token.scopes
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.read_text().strip() not in capsys.readouterr().err
        await write_first_token(app, tmp_path / "other")
    assert not (tmp_path / "other").exists()


async def test_beyond_loopback_only_its_own_names_are_answered(sqlite_url: str) -> None:
    async with served_controller(
        sqlite_url, SHOAL_LISTEN="0.0.0.0:0", SHOAL_PUBLIC_URL="https://shoal.example.org"
    ) as shop:
        token = await shop.token()
        for host, status in (
            ("shoal.example.org", 200),
            ("Shoal.Example.org:443", 200),
            ("127.0.0.1", 200),
            ("evil.test", 403),
        ):
            assert (await shop.ask(token=token, headers={"Host": host})).status == status, host


async def test_a_page_of_the_public_address_is_ours_whatever_host_a_proxy_puts_in_its_place(sqlite_url: str) -> None:
    async with served_controller(sqlite_url, SHOAL_PUBLIC_URL="https://shoal.example.org/") as shop:
        body = f"token={await shop.token()}".encode()
        for origin, status in (("https://shoal.example.org", 303), ("http://shoal.example.org", 403), ("null", 403)):
            headers = {"Origin": origin, "Sec-Fetch-Site": "same-origin"}
            assert (await shop.ask("/login", method="POST", body=body, headers=headers)).status == status


async def test_a_proxy_is_trusted_only_if_it_was_named(sqlite_url: str) -> None:
    async with served_controller(sqlite_url, SHOAL_TRUSTED_PROXIES="127.0.0.0/8") as shop:
        boss = await shop.token("admin")
        for _ in range(MOST_FAILURES + 1):
            wrong = await shop.ask(token=mint()[1], headers={"X-Forwarded-For": "192.0.2.1, 198.51.100.7"})
        assert wrong.status == 429
        elsewhere = {"X-Forwarded-For": "198.51.100.8"}
        body = b'{"name": "x", "role": "bot"}'
        made = await shop.ask("/api/v1/tokens", boss, method="POST", body=body, headers=elsewhere)
        log = (await shop.ask(f"/api/v1/audit-log?subject={made.json['id']}", boss)).json
        assert log["items"][0]["address"] == "198.51.100.8"
