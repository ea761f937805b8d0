"""What a crawl that renders leaves behind: Markdown, WARC and rule sets read the page after its scripts have run."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from warcio.archiveiterator import ArchiveIterator

from tests.support.processes import Shoal
from tests.support.script_site import EMPTY, script_site

PAGES = 3
RULES = '[fields.title]\ncss = "h1"\nrequired = true\n'
STORE = ("--store", "sqlite:///here.db")


class Answer(BaseHTTPRequestHandler):
    """The script site, whose pages have an ETag."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        status, fields, text = script_site(self.path, PAGES) or (404, {}, "")
        if self.path.startswith("/broken/"):
            status, fields, text = 200, {"Content-Type": "text/html"}, EMPTY
        elif "/broken/" in self.path:  # its data
            status, fields, text = 404, {}, ""
        if fields.get("Content-Type", "").startswith("text/html"):
            fields = fields | {"ETag": '"1"'}
            if self.headers["If-None-Match"] == '"1"':
                status, text = 304, ""
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def markdown(folder: Path) -> dict[str, str]:
    """Return the texts below the front matter, by the URL that it names."""
    found = {}
    for file in folder.glob("*/*.md"):
        _, head, text = file.read_text().split("---\n", 2)
        [url] = [line.partition(": ")[2] for line in head.splitlines() if line.startswith("url: ")]
        found[json.loads(url)] = text.strip()
    return found


def test_outputs_and_rule_sets_read_the_rendered_document(
    site: str, tmp_path: Path, chromium: str, shoal: Shoal
) -> None:
    (tmp_path / "rules.toml").write_text(RULES)
    crawl = ["crawl", site, "--speed", "max", "--render", "auto", *STORE]
    code, _, err = shoal(*crawl, "--id", "first", "--output", "a.md", "--output", "a.warc.gz", SHOAL_CHROMIUM=chromium)
    assert code == 0, err
    expected = {site: 0, f"{site}page/1": 1, f"{site}page/2": 2}
    for url, text in markdown(tmp_path / "a.md").items():
        assert f"text number {expected.pop(url)}" in text
    assert not expected
    with (tmp_path / "a.warc.gz").open("rb") as file:
        records = [
            (one.rec_type, one.rec_headers["WARC-Target-URI"], one.raw_stream.read()) for one in ArchiveIterator(file)
        ]
    assert [block.decode() for kind, _, block in records if kind == "response"] == [EMPTY] * PAGES
    rendered = {url: block for kind, url, block in records if kind == "conversion"}
    assert len(rendered) == PAGES
    assert b"<h1>Page 2</h1>" in rendered[f"urn:rendered:{site}page/2"]
    assert (tmp_path / "a.cdxj").read_bytes().count(b"\n") == PAGES  # replay runs the scripts of what was sent

    # A page that has not changed is not rendered again: its rendered document is that of the earlier crawl.
    code, _, err = shoal(*crawl, "--id", "second", "--since", "first", "--output", "b.md", SHOAL_CHROMIUM="missing")
    assert code == 0, err
    assert markdown(tmp_path / "b.md") == markdown(tmp_path / "a.md")
    for crawl_id in ("first", "second"):
        code, out, err = shoal("rules", "apply", "rules.toml", crawl_id, *STORE)
        assert (code, err) == (0, "3 pages read, 0 skipped, 0 without a body.\n")
        assert {json.loads(line)["data"]["title"] for line in out.splitlines()} == {"Page 0", "Page 1", "Page 2"}


def test_pages_that_stay_empty_are_counted_and_named(site: str, chromium: str, shoal: Shoal) -> None:
    seeds = [f"{site}broken/{number}" for number in range(5)]
    code, out, err = shoal("crawl", *seeds, "--render", "auto", "--speed", "max", "--json", SHOAL_CHROMIUM=chromium)
    assert code == 0, err
    assert json.loads(out)["stayed_empty"] == 5
    [told] = [line for line in err.splitlines() if "stayed empty" in line]
    assert told.startswith("Rendered pages that stayed empty, or nearly so: 5 (http://")
    assert sum(seed in told for seed in seeds) == 3
    assert told.endswith(", and 2 more)")


def test_application_shells_are_counted_and_named_in_a_crawl_that_does_not_render(site: str, shoal: Shoal) -> None:
    code, out, err = shoal("crawl", site, "--speed", "max", "--json")
    assert code == 0, err
    assert json.loads(out)["not_rendered"] == 1
    told = f"Pages that need a browser, but were read without one: 1 ({site}); crawl with --render auto"
    assert told in err.splitlines()


def test_a_rule_set_is_tested_on_the_rendered_page(site: str, tmp_path: Path, chromium: str, shoal: Shoal) -> None:
    (tmp_path / "rules.toml").write_text(RULES)
    words = ["rules", "test", "rules.toml", site, "--json"]
    assert shoal(*words, SHOAL_CHROMIUM=chromium)[0] == 1
    code, out, err = shoal(*words, "--render", "auto", SHOAL_CHROMIUM=chromium)
    assert code == 0, err
    assert json.loads(out)["data"] == {"title": "Page 0"}
