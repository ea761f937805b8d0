"""The shell of the console: headers, navigation, language and theme, sessions, forms and errors."""

import re
from pathlib import Path

import pytest

from shoal.serve.console import shell as assets
from tests.support.controller import ServedController, served_controller
from tests.support.plain_browser import PlainBrowser

MARKUP = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function")


@pytest.mark.parametrize("path", ["/", "/crawls", "/login", "/docs", "/nowhere"])
async def test_a_page_needs_nothing_but_its_own_files(visitor: PlainBrowser, path: str) -> None:
    seen = await visitor.get(path)
    policy = seen.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert seen.headers["cache-control"] == "no-store"
    assert not re.search(r"<style|\bstyle=|\son\w+=|<script(?![^>]*\bsrc=)", seen.html)
    for address in set(re.findall(r'(?:src|href)="(/static/[^"]+)"', seen.html)):
        asset = await visitor.get(address)
        assert asset.status == 200
        assert "immutable" in asset.headers["cache-control"]


@pytest.mark.parametrize("path", ["../login.py", "%2e%2e/login.py", "/etc/passwd", "console", ""])
async def test_a_file_outside_of_the_console_is_not_served(visitor: PlainBrowser, path: str) -> None:
    assert (await visitor.get(f"/static/{path}")).status == 404


def test_a_script_never_writes_markup() -> None:
    for path in Path(assets.STATIC).rglob("*.js"):
        assert not MARKUP.search(path.read_text())


async def test_theme_and_language_are_remembered(visitor: PlainBrowser) -> None:
    first = await visitor.get("/crawls")
    assert '<html lang="en" data-theme="system">' in first.html
    chosen = {"theme": "dark", "language": "fr", "back": "/crawls?q=state:running"}
    seen = await visitor.post("/console/preferences", chosen)
    assert '<html lang="fr" data-theme="dark">' in seen.html
    assert 'value="state:running"' in seen.html
    assert "Rechercher" in seen.text


async def test_a_browser_is_answered_in_its_language(visitor: PlainBrowser) -> None:
    visitor.headers["Accept-Language"] = "fr-FR,en;q=0.5"
    assert "Vue d'ensemble" in (await visitor.get("/")).text


@pytest.mark.parametrize("back", ["//evil.test/", "https://evil.test/", "/\\evil.test", "javascript:alert(1)"])
async def test_a_form_never_leads_to_another_site(visitor: PlainBrowser, back: str) -> None:
    await visitor.get("/crawls")
    body = f"theme=dark&back={back}&csrf={visitor.cookies['shoal_csrf']}"
    assert (await visitor.send("POST", "/console/preferences", body)).headers["location"] == "/"


@pytest.mark.parametrize("csrf", ["", "guessed"])
async def test_a_form_without_the_token_of_its_browser_changes_nothing(visitor: PlainBrowser, csrf: str) -> None:
    await visitor.get("/crawls")
    seen = await visitor.post("/console/preferences", {"theme": "dark"}, csrf=csrf)
    assert seen.status == 403
    assert "This form is out of date" in seen.text
    assert "shoal_view" not in visitor.cookies


async def test_a_form_of_another_site_is_refused(visitor: PlainBrowser) -> None:
    await visitor.get("/crawls")
    visitor.headers["Sec-Fetch-Site"] = "cross-site"
    assert (await visitor.post("/console/preferences", {"theme": "dark"})).status == 403


async def test_a_browser_without_a_session_lands_on_the_login_page_and_returns(
    shop: ServedController, visitor: PlainBrowser
) -> None:
    token = await shop.token("viewer")
    for path in ("/", "/crawls?q=state:running", "/docs", "/nowhere"):
        seen = await visitor.get(path)
        assert seen.path.startswith("/login")
        assert 'name="token"' in seen.html
    wrong = await visitor.sign_in("shl_wrong")
    assert (wrong.status, "That is not a valid token." in wrong.text) == (401, True)
    seen = await visitor.get("/docs")
    wanted = re.search(r'name="next" value="([^"]*)"', seen.html)
    assert wanted
    entered = await visitor.send("POST", "/login", f"token={token}&next={wanted[1]}")
    assert entered.headers["location"] == "/docs"
    assert "HTTP API" in (await visitor.get("/docs")).text


async def test_a_session_that_ended_leads_to_the_login_page(shop: ServedController, visitor: PlainBrowser) -> None:
    await visitor.sign_in(await shop.token("operator"))
    assert "Sign out" in (await visitor.get("/crawls")).text
    visitor.cookies["shoal_token"] = "shl_0000000000_00000000000000000000"
    for seen in (await visitor.get("/crawls"), await visitor.post("/crawls/actions", {"action": "pause"})):
        assert seen.path.startswith("/login")


async def test_a_viewer_sees_no_actions_and_cannot_send_them(shop: ServedController, visitor: PlainBrowser) -> None:
    operator = await shop.token("operator")
    body = b'{"seeds": ["https://example.com/"], "start": false}'
    await shop.ask(token=operator, method="POST", body=body)
    await visitor.sign_in(await shop.token("viewer"))
    page = await visitor.get("/crawls")
    assert "https://example.com/" in page.text
    assert 'name="action"' not in page.html
    assert "New crawl" not in page.text
    refused = await visitor.post("/crawls/actions", {"action": "pause", "which": "matching"})
    assert (refused.status, "This needs the scope write" in refused.text) == (403, True)
    themed = await visitor.post("/console/preferences", {"theme": "dark", "back": "/"})
    assert 'data-theme="dark"' in themed.html


async def test_an_unknown_address_is_a_page_for_people_and_a_problem_for_programs(
    shop: ServedController, visitor: PlainBrowser
) -> None:
    seen = await visitor.get("/nowhere")
    assert (seen.status, "There is no page at this address." in seen.text) == (404, True)
    assert (await shop.ask("/nowhere")).json["code"] == "no_such_path"


async def test_a_prefix_behind_a_proxy_is_part_of_every_address(sqlite_url: str) -> None:
    async with served_controller(sqlite_url, SHOAL_PUBLIC_URL="http://127.0.0.1/shoal/") as shop:
        visitor = PlainBrowser(shop.port)
        for path in ("/crawls", "/shoal/crawls"):  # a proxy may remove the prefix, or pass it on
            seen = await visitor.get(path)
            assert seen.status == 200
            addresses = re.findall(r'(?:href|src|action|data-feed)="(/[^"]*)"', seen.html)
            assert addresses
            assert [address for address in addresses if not address.startswith("/shoal/")] == []
        await shop.token("viewer")
        assert (await visitor.get("/shoal/crawls", follow=False)).headers["location"] == "/shoal/login?next=%2Fcrawls"


async def test_an_error_that_nobody_foresaw_is_a_page_for_people_and_a_problem_for_programs(
    shop: ServedController, visitor: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shop.app.fleet.nodes, "list_all", None)  # what the page calls is not there
    seen = await visitor.get("/fleet")
    assert (seen.status, "The server could not show this page; the reason is in the server log." in seen.text) == (
        500,
        True,
    )
    answer = await shop.ask("/api/v1/nodes")
    assert (answer.status, answer.json["code"]) == (500, "unexpected")
