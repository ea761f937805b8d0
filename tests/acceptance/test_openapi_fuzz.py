"""A real controller answers every request that the OpenAPI document allows as documented, and never with 500.

schemathesis makes the requests: examples, the edges of every field and parameter, and some at random, from a seed.
"""

import json
import subprocess
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.support.fleet import Fleet
from tests.support.tool_environments import environment, plain_environment

pytestmark = pytest.mark.exhaustive

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "unsupported_method",
)
PHASES = "examples,coverage,fuzzing"
AT_RANDOM = 2  # for each endpoint
DEADLINE_SECONDS = 400


def admin_token(port: int) -> str:
    body = json.dumps({"name": "schemathesis", "role": "admin"}).encode()
    request = Request(f"http://127.0.0.1:{port}/api/v1/tokens", body, {"Content-Type": "application/json"})
    with urlopen(request, timeout=30) as answer:
        return str(json.load(answer)["token"])


def test_no_request_that_the_document_allows_is_answered_wrongly(postgres_url: str, tmp_path: Path) -> None:
    """Use PostgreSQL, which accepts less than SQLite: it refuses some texts and numbers beyond 64 bits."""
    with Fleet(tmp_path, postgres_url) as fleet:
        fleet.controller()
        token = admin_token(fleet.port)
        done = subprocess.run(
            [
                str(environment("schemathesis") / "bin" / "schemathesis"),
                "run",
                f"http://127.0.0.1:{fleet.port}/openapi.json",
                "--header",
                f"Authorization: Bearer {token}",
                f"--phases={PHASES}",
                f"--max-examples={AT_RANDOM}",
                "--seed=5",
                f"--checks={','.join(CHECKS)}",
                "--exclude-operation-id=watch_crawl",  # its response lasts as long as the crawl
                "--exclude-operation-id=scrape_page",  # without a worker, its response is 503
                "--warnings=off",
                "--no-color",
                "--no-shrink",
                "--request-timeout=60",
                "--suppress-health-check=all",
            ],
            cwd=tmp_path,
            env=plain_environment(),
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout[done.stdout.find("=== ") :][:6000]
        assert "passed" in done.stdout
