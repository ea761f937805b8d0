"""The console in a real browser, with a controller, a worker and a site: what a person does and sees."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.support.axe import axe_script
from tests.support.control_fleet import control_plane, wait_for_node
from tests.support.fleet import Fleet, wait_for
from tests.support.site import Site

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
COLORS = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}  # what the theme decides
PATIENCE = 30_000  # milliseconds
SPILLS = "[...document.querySelectorAll('td, th')].some((cell) => cell.scrollWidth > cell.clientWidth + 2)"
INK = "body => getComputedStyle(body).color"
TOO_WIDE = """[...document.querySelectorAll('.table')].filter((table) => table.scrollWidth > table.clientWidth)
    .map((table) => [table.scrollWidth, table.innerText])"""
# Of the rules that are kept, axe would list every element; that takes longer than the check.
AXE = """rules => axe.run(document, {runOnly: rules, iframes: false, resultTypes: ["violations"]})
    .then(found => found.violations)"""


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--disable-quic", *sandbox])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("console")
    with Fleet(folder, f"sqlite:///{folder}/shoal.db") as fleet:
        fleet.controller()
        fleet.worker()
        yield fleet


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site(pages=60) as site:
        yield site


@pytest.fixture
def visit(browser: Browser, fleet: Fleet) -> Iterator["Visit"]:
    visit = Visit(browser, f"http://127.0.0.1:{fleet.port}")
    yield visit
    visit.close()


class Visit:
    """A person at a browser. Every message of the browser's console is a fault."""

    def __init__(self, browser: Browser, address: str) -> None:
        self._browser = browser
        self.address = address
        self.contexts: list[BrowserContext] = []
        self.messages: list[str] = []

    def open(
        self, path: str, *, width: int = 1400, theme: str = "light", language: str = "en", script: bool = True
    ) -> Page:
        context = self._browser.new_context(
            viewport={"width": width, "height": 800},
            color_scheme=theme,  # type: ignore[arg-type]
            locale=language,
            java_script_enabled=script,
            reduced_motion="reduce",
        )
        context.set_default_timeout(PATIENCE)
        self.contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: self.messages.append(message.text))
        page.on("pageerror", lambda error: self.messages.append(str(error)))
        page.goto(self.address + path)
        return page

    def close(self) -> None:
        for context in self.contexts:
            context.close()
        expected = "the server responded with a status of 4"  # from a page that shows an error on purpose
        assert [one for one in self.messages if expected not in one] == []


def badge(page: Page, word: str) -> None:
    expect(page.locator("[data-region=crawl_head] .badge")).to_have_text(word, timeout=PATIENCE)


def test_a_crawl_from_the_form_is_followed_to_its_end_without_a_reload(visit: Visit, fleet: Fleet, site: Site) -> None:
    fleet.limit("project:held", 0)  # no worker gets its crawls until the limit is raised
    page = visit.open("/crawls/new")
    page.fill("#project", "held")
    page.fill("#seeds", "ftp://example.com/")
    expect(page.locator("#seeds-problem")).to_contain_text("write it as http://")
    page.fill("#seeds", site.address)
    expect(page.locator("#seeds-problem")).to_be_empty()
    page.select_option("#speed", "max")
    page.fill("#depth", "50")
    page.get_by_role("button", name="Preview the scope").click()
    expect(page.locator("#preview")).to_contain_text("The host has no robots.txt, so every URL is allowed.")
    site.allowed = 5
    page.get_by_role("button", name="Start crawl").click()
    badge(page, "In queue")
    expect(page.locator("h1")).to_have_text(site.address)
    expect(page.locator("[data-region=crawl_head]")).to_contain_text("Waiting for a worker…")
    page.evaluate("window.isTheSamePage = true")
    fleet.limit("project:held", 1)
    badge(page, "Running")
    expect(page.locator("[data-region=crawl_numbers]")).to_contain_text("more may be found")
    held = visit.open(f"{urlsplit(page.url).path}/frontier").locator("[data-region=crawl_frontier]")
    expect(held).to_contain_text("Held for at least")
    assert page.evaluate("window.isTheSamePage")
    page.get_by_role("button", name="Pause", exact=True).click()
    site.allowed = 20
    badge(page, "Paused")
    page.get_by_role("button", name="Resume").click()
    badge(page, "Running")
    page.evaluate("window.isTheSamePage = true")
    site.allowed = None
    badge(page, "Completed")
    assert page.evaluate("window.isTheSamePage")
    log = page.locator("[data-log]")
    expect(log.locator("li").last).to_contain_text("Completed: 60 pages")
    at_end = "log => log.scrollTop + log.clientHeight >= log.scrollHeight - 2"
    assert log.evaluate(at_end)
    expect(page.locator(".number-card").first).to_contain_text("60")


def test_a_running_crawl_is_stopped_after_a_question(visit: Visit, fleet: Fleet, site: Site) -> None:
    site.allowed = len(site.urls)
    crawl_id = fleet.submit(site, start=False)
    page = visit.open(f"/crawls/{crawl_id}")
    page.get_by_role("button", name="Stop").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Stop this crawl permanently?")
    dialog.get_by_role("button", name="Cancel").click()
    badge(page, "Not started")
    page.get_by_role("button", name="Stop").click()
    dialog.get_by_role("button", name="Stop").click()
    badge(page, "Stopped")
    expect(page.locator(".notice")).to_contain_text("being stopped")


def test_the_keyboard_leads_everywhere_and_a_search_selects_for_an_action(
    visit: Visit, fleet: Fleet, site: Site
) -> None:
    kept = fleet.submit(site, start=False, project="kept")
    ids = [fleet.submit(site, start=False, project="shop") for _ in range(2)]
    page = visit.open("/")
    page.keyboard.press("c")
    page.wait_for_url("**/crawls")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Keyboard shortcuts")
    page.keyboard.press("Escape")
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.keyboard.press("/")
    page.keyboard.type("state:pending project:shop")
    page.keyboard.press("Enter")
    page.wait_for_url("**/crawls?q=state*")
    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.locator("[data-select-all]").check()
    expect(page.locator("[data-selected-text]")).to_have_text("2 selected")
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    expect(page.locator(".notice")).to_have_text("2 crawls are being stopped.")
    assert {fleet.crawl(one)["state"] for one in ids} == {"stopped"}
    assert fleet.crawl(kept)["state"] == "pending"


def test_a_search_line_is_completed_by_keyboard(visit: Visit, fleet: Fleet, site: Site) -> None:
    fleet.submit(site, start=False, project="catalogue")
    page = visit.open("/crawls")
    page.keyboard.press("/")
    field = page.get_by_role("combobox", name="Search crawls")
    options = page.get_by_role("listbox", name="Search crawls").get_by_role("option")
    expect(field).to_be_focused()
    expect(options).to_have_count(4)
    page.keyboard.type("st")
    expect(options).to_have_text(["state:current state"])
    page.keyboard.press("ArrowDown")
    expect(options.first).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    expect(field).to_have_value("state:")
    page.keyboard.type("pen")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(field).to_have_value("state:pending ")
    page.keyboard.type("project:cat")
    expect(options).to_have_text(["project:catalogue"])
    page.keyboard.press("Escape")
    expect(options).to_have_count(0)
    expect(field).to_be_focused()
    page.keyboard.press("ArrowUp")
    page.evaluate(axe_script())
    assert page.evaluate("rules => axe.run(document, {runOnly: rules})", RULES)["violations"] == []
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    page.wait_for_url("**/crawls?q=state%3Apending+project%3Acatalogue*")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert visit.open("/crawls", script=False).get_by_role("searchbox", name="Search crawls").is_visible()


def test_a_killed_node_is_shown_as_lost_without_a_reload(browser: Browser, tmp_path: Path) -> None:
    settings = control_plane(GRPC_HEARTBEAT_INTERVAL="300ms")
    with Fleet(tmp_path, f"sqlite:///{tmp_path}/shoal.db", **settings) as fleet:
        fleet.controller()
        node = fleet.worker("crawler-1")
        wait_for_node(fleet, "crawler-1", state="connected")
        visit = Visit(browser, f"http://127.0.0.1:{fleet.port}")
        page, own = visit.open("/fleet"), visit.open("/fleet/crawler-1")
        for one in (page, own):
            expect(one.locator(".badge").first).to_have_text("Connected")
            one.evaluate("window.isTheSamePage = true")
        node.kill()
        for one in (page, own):
            expect(one.locator(".badge").first).to_have_text("Lost", timeout=PATIENCE)
            assert one.evaluate("window.isTheSamePage")
        expect(own.locator("main")).to_contain_text("It has sent no heartbeat for ")
        visit.close()


@pytest.mark.exhaustive
def test_a_person_signs_in_and_a_session_that_ends_leads_back_to_the_login(browser: Browser, tmp_path: Path) -> None:
    with Fleet(tmp_path, f"sqlite:///{tmp_path}/shoal.db") as fleet:
        fleet.controller()
        boss = fleet.post("/api/v1/tokens", name="boss", role="admin")["token"]
        visit = Visit(browser, f"http://127.0.0.1:{fleet.port}")
        page = visit.open("/docs")
        page.wait_for_url("**/login?next=*")
        for token, words in (("shl_wrong", "That is not a valid token."), (boss, "HTTP API")):
            page.fill("#token", token)
            page.get_by_role("button", name="Sign in").click()
            expect(page.locator("body")).to_contain_text(words)
        assert page.url.endswith("/docs")
        page.goto(f"{visit.address}/settings")
        page.fill("#name", "guest")
        page.get_by_role("button", name="Create token").click()
        guest = page.locator("pre code").inner_text()
        other = visit.open("/crawls")
        other.fill("#token", guest)
        other.get_by_role("button", name="Sign in").click()
        expect(other.locator(".live")).to_have_attribute("data-state", "on")
        page.get_by_role("row", name="guest").get_by_role("button", name="Revoke").click()
        page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        expect(page.locator(".notice")).to_have_text("The token was revoked.")
        other.wait_for_url("**/login?next=%2Fcrawls", timeout=PATIENCE)
        page.context.clear_cookies(name="shoal_csrf")
        page.fill("#name", "forged")
        page.get_by_role("button", name="Create token").click()
        expect(page.locator("h1")).to_contain_text("This form is out of date")
        visit.close()


def test_without_a_script_a_crawl_is_started_and_stopped_too(visit: Visit, fleet: Fleet, site: Site) -> None:
    page = visit.open("/crawls/new", script=False)
    page.fill("#seeds", "nonsense")
    page.get_by_role("button", name="Start crawl").click()
    expect(page.locator("#seeds-problem")).not_to_be_empty()
    page.fill("#seeds", site.address)
    page.get_by_role("button", name="Preview the scope").click()
    expect(page.locator("#preview")).to_contain_text("robots.txt")
    page.get_by_role("button", name="Start crawl").click()
    expect(page.locator("h1")).to_have_text(site.address)
    page.goto(f"{visit.address}/crawls/{fleet.submit(site, start=False)}")
    expect(page.get_by_role("button", name="Keyboard shortcuts")).to_be_hidden()
    menus = [page.locator(f".preferences {name}").bounding_box() for name in ("#theme", "#language")]
    assert all(menu and menu["width"] > 70 for menu in menus), f"the menus are cut off: {menus}"
    page.goto(f"{page.url}/log")
    expect(page.locator("[data-log]")).to_be_visible()
    expect(page.locator("#log-filter")).to_be_hidden()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("h1")).to_have_text("Stop this crawl permanently?")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".badge")).to_have_text("Stopped")


def test_the_pages_without_work_are_accessible_in_both_themes_and_fit_a_phone(visit: Visit) -> None:
    check_pages(visit, ["/", "/crawls", "/crawls/new", "/policies/new", "/login", "/nowhere"])


@pytest.mark.exhaustive
def test_every_page_is_accessible_in_both_themes_and_fits_a_phone(visit: Visit, fleet: Fleet, site: Site) -> None:
    site.allowed = None
    crawl_id = fleet.submit(site, keep_bodies=True, max_pages=20, analyze=True)
    fleet.wait_for_state(crawl_id, "completed")
    ended = ("success", "failed")
    wait_for(lambda: fleet.get(f"/api/v1/analyses?crawl_id={crawl_id}")["items"][0]["state"] in ended, "an analysis")
    policy = fleet.post("/api/v1/policies", seeds=[site.address], frequency="24h", crawl_config={"max_pages": 5})
    number = re.search(rf"{crawl_id}~(\d+)", visit.open(f"/crawls/{crawl_id}/pages").content())
    assert number
    tabs = [
        "",
        "/pages",
        "/pages?sort=-words",
        "/audit",
        "/links",
        "/links?skipped=scope",
        "/broken",
        "/site",
        "/hosts",
        "/frontier",
        "/log",
        "/attempts",
        "/diff",
        "/options",
    ]
    paths = ["/", "/crawls", "/crawls/new", "/login", *(f"/crawls/{crawl_id}{tab}" for tab in tabs)]
    paths += [f"/pages/{crawl_id}~{number[1]}", "/nowhere"]
    job = re.search(r"/jobs/(job_\w+)", visit.open("/jobs").content())
    assert job
    paths += ["/jobs", f"/jobs/{job[1]}", "/fleet", "/policies", "/policies/new", "/policies/import", "/policies/bots"]
    paths += [f"/policies/{policy['id']}", f"/policies/new?crawl={crawl_id}", "/analyses", "/events", "/settings"]
    check_pages(visit, paths)


def check_pages(visit: Visit, paths: list[str]) -> None:
    """Check pages for accessibility, light and wide, and dark and narrow, and that nothing is wider than its place."""
    found: dict[str, list[str]] = {}
    for theme, width, rules in (("light", 1400, RULES), ("dark", 360, COLORS)):
        page = visit.open("/", theme=theme, width=width)
        for path in paths:
            page.goto(visit.address + path)
            if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                found.setdefault(path, []).append(f"{theme}: wider than the screen")
            if page.evaluate(SPILLS):
                found.setdefault(path, []).append(f"{theme}: a cell spills over the next one")
            page.evaluate(axe_script())
            for one in page.evaluate(AXE, rules):
                nodes = "; ".join(node["html"][:150] for node in one["nodes"][:3])
                found.setdefault(path, []).append(f"{theme}: {one['id']}: {nodes}")
    assert found == {}


def test_a_stored_body_is_shown_as_text(visit: Visit, fleet: Fleet, site: Site) -> None:
    crawl_id = fleet.submit(site, keep_bodies=True, max_pages=5)
    fleet.wait_for_state(crawl_id, "completed")
    page = visit.open(f"/crawls/{crawl_id}/pages")
    page.locator("tbody tr").first.click()
    page.wait_for_url("**/pages/**")
    body = page.request.get(f"{page.url}/body")
    assert body.headers["content-type"] == "text/plain; charset=utf-8"
    assert body.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in body.headers["content-security-policy"]
    for shown in (page, visit.open(urlsplit(page.url).path, theme="dark")):
        shown.locator("iframe").scroll_into_view_if_needed()
        frame = shown.frame_locator("iframe").locator("body")
        expect(frame).to_contain_text("<!doctype html>")
        behind = shown.locator("iframe").evaluate("frame => getComputedStyle(frame).backgroundColor")
        ink, paper = (sum(map(int, re.findall("[0-9]+", one))) for one in (frame.evaluate(INK), behind))
        assert abs(ink - paper) > 500, "the text can be read"


def test_the_console_speaks_french(visit: Visit, fleet: Fleet, site: Site) -> None:
    fleet.submit(site, start=False)
    page = visit.open("/crawls", language="fr-FR")
    expect(page.locator("h1")).to_have_text("Crawls")
    expect(page.locator("tbody .badge").first).to_have_text("Non démarré")
    fleet.post("/api/v1/policies", seeds=[site.address], frequency="24h", project="boutique", enabled=False)
    for path in ("/policies", "/jobs", "/crawls"):
        page.goto(visit.address + path)
        assert page.evaluate(TOO_WIDE) == [], path
    page.select_option("#language", "en")
    expect(page.locator("tbody .badge").first).to_have_text("Not started")
