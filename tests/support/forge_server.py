"""A forge on loopback that accepts commit statuses as GitHub, GitLab and Gitea document them, and refuses the rest."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote

TOKEN = "forge-secret-token"
SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
GITHUB_PATH = re.compile(r"/(github|gitea)/repos/([^/]+)/([^/]+)/statuses/([^/]+)")
GITLAB_PATH = re.compile(r"/gitlab/projects/([^/]+)/statuses/([^/]+)")
STATES = {
    "github": {"error", "failure", "pending", "success"},
    "gitea": {"error", "failure", "pending", "success", "warning"},
    "gitlab": {"pending", "running", "success", "failed", "canceled", "skipped"},
}
FIELDS = {
    "github": {"state", "target_url", "description", "context"},
    "gitea": {"state", "target_url", "description", "context"},
    "gitlab": {"state", "name", "target_url", "description", "ref", "coverage", "pipeline_id"},
}


class ForgeServer:
    """Statuses by forge, repository, commit and context. `answers`: what the next requests get instead of a status."""

    def __init__(self) -> None:
        self.statuses: dict[tuple[str, str, str, str], list[dict[str, Any]]] = {}
        self.answers: list[tuple[int, str, dict[str, str]]] = []
        self.requests = 0
        self.port = 0

    def api(self, forge: str) -> str:
        return f"http://127.0.0.1:{self.port}/{forge}"

    def states(self, forge: str, repo: str, sha: str, context: str) -> list[str]:
        return [status["state"] for status in self.statuses.get((forge, repo, sha, context), [])]

    def accept(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, Any]]:
        """Return the answer that the forge documents."""
        forge = path.split("/")[1]
        if headers.get("content-type") != "application/json" or "user-agent" not in headers:
            return 415, {"message": "unsupported media type"}
        if match := GITLAB_PATH.fullmatch(path):
            repo, sha = unquote(match[1]), match[2]
            if headers.get("private-token") != TOKEN:
                return 401, {"message": "401 Unauthorized"}
        elif match := GITHUB_PATH.fullmatch(path):
            repo, sha = f"{match[2]}/{match[3]}", match[4]
            login = f"Bearer {TOKEN}" if forge == "github" else f"token {TOKEN}"
            if headers.get("authorization") != login:
                return 401, {"message": "Bad credentials"}
        else:
            return 404, {"message": "Not Found"}
        values = json.loads(body)
        problem = self._problem(forge, sha, values)
        if problem is not None:
            return 422, {"message": problem}
        context = values["name"] if forge == "gitlab" else values["context"]
        known = self.statuses.setdefault((forge, repo, sha, context), [])
        if forge == "gitlab" and known and known[-1]["state"] == values["state"]:
            return 400, {"message": f"Cannot transition status via :run from :{values['state']}"}
        known.append(values)
        return 201, {"id": len(known), **values}

    def _problem(self, forge: str, sha: str, values: dict[str, Any]) -> str | None:
        if not SHA.fullmatch(sha):
            return "No commit found for SHA"
        if not set(values) <= FIELDS[forge] or values.get("state") not in STATES[forge]:
            return "Validation failed"
        return "description is too long" if len(values.get("description", "")) > 140 else None


@contextmanager
def forge_server() -> Iterator[ForgeServer]:
    forge = ForgeServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            forge.requests += 1
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            fields = {name.lower(): value for name, value in self.headers.items()}
            more: dict[str, str] = {}
            if forge.answers:
                status, text, more = forge.answers.pop(0)
            else:
                status, answer = forge.accept(self.path, fields, body)
                text = json.dumps(answer)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text.encode())))
            for name, value in more.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    forge.port = server.server_address[1]
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield forge
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
