"""The OpenAPI document is usable: generated clients work against a real controller, and linters have no objection."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from shoal.serve.api import GROUPS
from shoal.serve.endpoint import public_endpoints
from shoal.serve.openapi import document
from shoal.serve.renderer import RendererApi
from tests.support.fleet import Fleet
from tests.support.tool_environments import environment, node_tools, plain_environment

pytestmark = pytest.mark.exhaustive

DEADLINE_SECONDS = 200
DOCUMENTS = {"serve": GROUPS, "renderer": (RendererApi,)}

# What a user writes with the client that openapi-python-client generates.
PYTHON_CLIENT = """
import sys
from client import AuthenticatedClient
from client.api.bots import pull_jobs, push_result, send_heartbeat
from client.api.crawls import create_crawl, list_crawls, show_crawl
from client.api.jobs import create_jobs, list_job_results
from client.api.tokens import create_token
from client.models import CrawlConfig, CrawlState, GroupConfig, HeartbeatForm, PullForm, ResultForm, ResultFormDataType0
from client.models import Status, TokenRequest, TokenRequestRoleType0

server, token = sys.argv[1:]
user = AuthenticatedClient(base_url=server, token=token, raise_on_unexpected_status=True)
made = create_crawl.sync_detailed(client=user, body=CrawlConfig(seeds=["https://example.org/"], depth=1, start=False))
assert made.headers["Location"] == f"/api/v1/crawls/{made.parsed.id}"
[listed] = list_crawls.sync(client=user, state=CrawlState.PENDING).items
shown = show_crawl.sync(made.parsed.id, client=user)
assert made.parsed.id == listed.id == shown.id
assert shown.config["depth"] == 1
assert show_crawl.sync("nowhere", client=user).code == "not_found"

create_jobs.sync(client=user, body=GroupConfig(urls=["https://example.org/page"]))
bot_token = create_token.sync(client=user, body=TokenRequest(name="bot", role=TokenRequestRoleType0.BOT)).token
bot = AuthenticatedClient(base_url=server, token=bot_token, raise_on_unexpected_status=True)
[job] = pull_jobs.sync(client=bot, body=PullForm(bot_id="generated")).jobs
assert not send_heartbeat.sync(job.job_id, client=bot, body=HeartbeatForm(epoch=job.lease.epoch)).cancelled
data = ResultFormDataType0.from_dict({"title": "A page"})
result = ResultForm(epoch=job.lease.epoch, status=Status.SUCCESS, data=data)
assert push_result.sync(job.job_id, client=bot, body=result).state == "DONE"
[stored] = list_job_results.sync(job.job_id, client=user).items
assert stored.data == {"title": "A page"}
"""


def run(folder: Path, *words: str | Path) -> str:
    done = subprocess.run(
        [*map(str, words)],
        cwd=folder,
        env=plain_environment() | {"PATH": os.environ["PATH"], "REDOCLY_TELEMETRY": "off"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(params=DOCUMENTS)
def openapi(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(document(list(public_endpoints(DOCUMENTS[request.param])))))
    return file


def test_a_generated_python_client_creates_lists_and_reads_a_crawl_and_pushes_a_result(
    store_url: str, tmp_path: Path
) -> None:
    programs = environment("openapi-python-client") / "bin"
    (tmp_path / "use.py").write_text(PYTHON_CLIENT)
    (tmp_path / "config.yml").write_text("package_name_override: client\n")
    with Fleet(tmp_path, store_url) as fleet:
        fleet.controller()
        server = f"http://127.0.0.1:{fleet.port}"
        words = ("generate", "--url", f"{server}/openapi.json", "--meta", "none", "--output-path", "client")
        said = run(tmp_path, programs / "openapi-python-client", *words, "--config", "config.yml")
        token = fleet.post("/api/v1/tokens", name="admin", role="admin")["token"]
        run(tmp_path, programs / "python", "use.py", server, token)
    assert said.count("WARNING") == said.count("POST /api/v1/policies/import") == 1  # it cannot send a file of CSV
    assert "Unable to process" not in said


def test_a_generated_typescript_client_compiles(openapi: Path) -> None:
    run(openapi.parent, node_tools() / "openapi-typescript", openapi, "--output", "api.ts")
    run(openapi.parent, node_tools() / "tsc", "--noEmit", "--strict", "api.ts")


def test_spectral_has_no_error_and_no_warning(openapi: Path) -> None:
    (openapi.parent / ".spectral.yaml").write_text("extends: ['spectral:oas']\n")
    run(openapi.parent, node_tools() / "spectral", "lint", openapi, "--fail-severity", "hint")


def test_redocly_has_no_error_and_no_warning(openapi: Path) -> None:
    said = run(openapi.parent, node_tools() / "redocly", "lint", openapi)
    assert "Your API description is valid" in said
    assert "warning" not in said.lower().partition("validating")[2]
