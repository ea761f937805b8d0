"""The documentation site as `make docs` builds it: complete, and without any other host."""

import os
import re
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from playwright.sync_api import expect, sync_playwright

from tools.site import build

pytestmark = pytest.mark.exhaustive

LOADED = re.compile(r"""<(?:script|img|iframe|source|link)\b[^>]*\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")
IN_STYLES = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')]+)""")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; MkDocs refuses pages that are not in the navigation, and dead links and anchors."""
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stdout
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=folder)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_no_page_and_no_style_names_another_host(folder: Path) -> None:
    pages, styles = list(folder.rglob("*.html")), list(folder.rglob("*.css"))
    assert len(pages) > 100
    assert styles
    assert {found for page in pages for found in LOADED.findall(page.read_text())} == set()
    assert {found for style in styles for found in IN_STYLES.findall(style.read_text())} == set()


def test_the_index_for_language_models_links_to_pages_of_the_site(folder: Path) -> None:
    links = re.findall(r"\]\((\S+)\)", (folder / "llms.txt").read_text())
    assert len(links) > 5
    assert [link for link in links if not (folder / link).exists()] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_reader_finds_a_page_by_searching_and_no_other_host_hears_of_it(
    address: str, chromium: str, scheme: str
) -> None:
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=sandbox)
        page = browser.new_page(color_scheme=scheme)
        requested: list[str] = []
        page.on("request", lambda request: requested.append(request.url))
        page.goto(address)
        expect(page.locator("body")).to_have_attribute(
            "data-md-color-scheme", {"light": "default", "dark": "slate"}[scheme]
        )
        page.get_by_role("textbox", name="Search").click()
        page.keyboard.type("crawler traps quarantine")
        page.locator(".md-search-result__link", has_text="Crawler traps").first.click()
        expect(page.get_by_role("heading", level=1)).to_have_text(re.compile("Crawler traps"))
        browser.close()
    assert any("search_index" in url for url in requested)
    assert [url for url in requested if not url.startswith((address, "data:", "blob:"))] == []
