"""Nodes with and without a browser, as real processes: who renders page jobs, and what a browser restart does."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.acceptance.test_nodes import control_plane, wait_for_node
from tests.support.fleet import Fleet, Shoal, children_of, clean_environment, wait_for
from tests.support.processes import run_shoal

PAGE = b"<!doctype html><title>before</title><script src=/slow.js></script>"
SCRIPT = b"document.title = 'after'"
TITLE = {"fields": {"title": {"css": "title"}}}


class SlowScript:
    """A page whose script arrives when `go` is set."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.asked = 0  # the number of requests for the script
        site = self

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/slow.js":
                    site.asked += 1
                    site.go.wait()
                found = {"/": ("text/html", PAGE), "/slow.js": ("text/javascript", SCRIPT)}.get(path)
                kind, body = found or ("text/plain", b"")
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *facts: Any) -> None:
                """Write nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self._server.handle_error = lambda *facts: None  # type: ignore[method-assign]  # a killed browser hangs up
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.go.set()
        self._server.shutdown()
        self._server.server_close()


def browsers_of(worker: Shoal) -> list[int]:
    """The processes that the children of a worker have started."""
    return [pid for child in worker.children() for pid in children_of(child)]


@pytest.mark.exhaustive
def test_a_node_with_a_browser_renders_page_jobs_and_restarts_it(
    sqlite_url: str, tmp_path: Path, chromium: str
) -> None:
    settings = control_plane(SHOAL_PAGE_SPEED="max", SHOAL_CHROMIUM="missing", MAX_CONCURRENT_CHROME="3")
    with SlowScript() as site, Fleet(tmp_path, sqlite_url, **settings) as fleet:
        fleet.controller()
        environment = clean_environment(tmp_path) | {"SHOAL_SERVER": f"http://127.0.0.1:{fleet.port}"}

        def nodes(*words: str, code: int = 0) -> dict[str, Any]:
            done = run_shoal("nodes", *words, "--json", cwd=tmp_path, env=environment, timeout=60)
            assert done.returncode == code, done.stderr
            shown: dict[str, Any] = json.loads(done.stdout)
            return shown

        fleet.worker("plain")
        wait_for_node(fleet, "plain", state="connected", capabilities=["http"], browser_slots=0)
        group = fleet.fetch([site.url], rule_set=TITLE, crawl_config={"js_required": True})
        [job] = fleet.get(f"/api/v1/jobs?run_id={group}")["items"]
        assert fleet.get(f"/api/v1/jobs/{job['id']}/explain")["reason"] == "no_renderer"
        refused = nodes("restart-browser", "plain", code=1)
        assert (refused["state"], "no browser" in refused["detail"]) == ("unsupported", True)

        worker = fleet.worker("browser", SHOAL_CHROMIUM=chromium)
        wait_for_node(fleet, "browser", state="connected", capabilities=["http", "js"], browser_slots=3)
        wait_for(lambda: site.asked == 1, "a page in the browser")
        wait_for_node(fleet, "browser", browsers=1, browser_pages=1)
        assert nodes("show", "browser")["browsers"] == 1
        [before] = browsers_of(worker)

        assert nodes("restart-browser", "browser", "--reason", "leak")["state"] == "applied"
        wait_for(lambda: site.asked == 2, "the page in the next browser")
        [after] = browsers_of(worker)
        assert after != before
        site.go.set()
        wait_for(lambda: fleet.group(group)["state"] == "completed", "a group that is over")

        [result] = fleet.get(f"/api/v1/groups/{group}/results")["items"]
        assert (result["status"], result["data"]) == ("success", {"title": "after"})
        ended = fleet.get(f"/api/v1/jobs/{job['id']}")
        assert ended["attempts"] == 0
        assert [(one["ended"], one["node"]) for one in ended["history"]][-2:] == [("released", None), ("done", None)]
        wait_for_node(fleet, "browser", browsers=1, browser_pages=0)

        second = fleet.fetch([f"{site.url}?again"], crawl_config={"js_required": True})
        wait_for(lambda: fleet.group(second)["state"] == "completed", "a second group that is over")
        [offered] = fleet.get(f"/api/v1/jobs?run_id={second}")["items"]
        dispatch = fleet.get(f"/api/v1/jobs/{offered['id']}/explain")["dispatch"]
        assert dispatch["node_id"] == "browser"
        assert {one["node_id"]: one["skipped"] for one in dispatch["candidates"]} == {
            "browser": "",
            "plain": "lacks js",
        }
