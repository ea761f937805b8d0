"""The deployment with Docker Compose, without Docker: the file, the Dockerfile, and what the containers would run."""

import json
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.support.compose import FILE, ROOT, Deployment, build_stages, read_services
from tests.support.fleet import Shoal, wait_for
from tests.support.script_site import script_site
from tests.support.servers import Servers, ask_redis
from tests.support.site import Site
from tests.support.tool_environments import environment

pytestmark = pytest.mark.exhaustive

REPLICAS_TRIED = 2
SCRIPTED_PAGES = 5
REDIS = {"COMPOSE_PROFILES": "redis"}
DOT_ENV = {"POSTGRES_PASSWORD": "secret", "HOST_UID": "1001", "SHOAL_ALLOW_NETWORKS": "127.0.0.0/8"}


def test_the_file_follows_the_compose_specification() -> None:
    check = environment("containers") / "bin" / "check-jsonschema"
    done = subprocess.run(
        [check, "--builtin-schema", "vendor.compose-spec", FILE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_the_dockerfile_has_no_fault_that_a_linter_knows() -> None:
    done = subprocess.run(
        [environment("containers") / "bin" / "hadolint", "--no-color", ROOT / "Dockerfile"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_the_dockerfile_copies_what_the_build_is_given_and_ends_without_root() -> None:
    text = (ROOT / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (?!--from)(\S+) ", text, re.MULTILINE)
    given = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert copied
    for name in copied:
        assert (ROOT / name).exists()
        assert name.partition("/")[0] in given
    for stage in re.split(r"^FROM ", text, flags=re.MULTILINE)[2:]:
        assert re.findall(r"^USER (\S+)$", stage, re.MULTILINE)[-1] == "1000:0"


def test_the_services_are_those_that_were_asked_for() -> None:
    services = read_services(REDIS)
    assert set(services) == {"postgres", "redis", "migrate", "web", "worker", "renderer"}
    flags = ["--appendonly", "yes", "--maxmemory", "2gb", "--maxmemory-policy", "noeviction"]
    assert services["redis"].command == ["redis-server", *flags]
    worker = services["worker"]
    assert worker.values["deploy"]["replicas"] == 5
    assert worker.values["restart"] == "unless-stopped"
    limits = {"WORKER_CONCURRENCY": "1", "MAX_CONCURRENT_CURL": "15", "MAX_CONCURRENT_CHROME": "5"}
    assert limits.items() <= worker.environment.items()
    assert worker.environment["RENDERER_URL"] == "http://renderer:3000"
    for service in services.values():
        assert service.ends or service.health_check
        assert set(service.waits_for) <= set(services)
    assert services["migrate"].command == ["db", "upgrade"]
    for name in ("web", "worker"):
        assert services[name].values["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
    ours = [services[name] for name in ("migrate", "web", "worker", "renderer")]
    assert {service.values["build"]["target"] for service in ours} <= set(build_stages())
    for service in ours:
        assert service.values["user"] == "1000:0"
        assert service.values["read_only"]
        assert service.values["cap_drop"] == ["ALL"]


def test_the_renderer_cannot_reach_the_store_and_has_none_of_its_secrets() -> None:
    services = read_services(REDIS | {"POSTGRES_PASSWORD": "secret"})
    renderer = services["renderer"]
    assert not renderer.has_env_file
    assert "secret" not in str(renderer.values)
    assert not set(renderer.values["networks"]) & set(services["postgres"].values["networks"])
    assert not set(renderer.values["networks"]) & set(services["redis"].values["networks"])


def test_redis_is_a_profile_that_carries_the_lanes() -> None:
    without = read_services({})
    assert "redis" not in without
    for name in ("migrate", "web", "worker"):
        assert {without[name].environment[setting] for setting in ("REDIS_URL", "SHOAL_LANES")} == {""}
        given = read_services(REDIS)[name].environment
        assert (given["REDIS_URL"], given["SHOAL_LANES"]) == ("redis://redis:6379/0", "redis")
    elsewhere = read_services({"REDIS_URL": "redis://cache:6379/3"})["web"].environment
    assert (elsewhere["REDIS_URL"], elsewhere["SHOAL_LANES"]) == ("redis://cache:6379/3", "")


def test_variables_of_the_env_file_win() -> None:
    services = read_services({"POSTGRES_USER": "me", "POSTGRES_PASSWORD": "secret", "POSTGRES_DB": "crawls"})
    assert services["web"].environment["DATABASE_URL"] == "postgresql://me:secret@postgres:5432/crawls"
    assert services["postgres"].environment["POSTGRES_PASSWORD"] == "secret"
    assert services["web"].values["ports"] == ["127.0.0.1:8700:8700"]


def test_the_commands_of_the_containers_crawl_and_render(
    bare_postgres_url: str, servers: Servers, chromium: str, tmp_path: Path
) -> None:
    """The commands, environments, start order and health checks of the containers, on an empty database."""
    redis = servers.new_redis(options=read_services(REDIS)["redis"].command[1:])
    try:
        facts = {*ask_redis(redis.url, "INFO", "memory").split(), *ask_redis(redis.url, "INFO", "persistence").split()}
        assert {f"maxmemory:{2 << 30}", "maxmemory_policy:noeviction", "aof_enabled:1"} <= facts
        with (
            Site(pages=60) as site,
            scripted_site() as scripted,
            Deployment(tmp_path, bare_postgres_url, redis.url, **DOT_ENV, **REDIS) as deployment,
        ):
            members = start_in_order(deployment)
            token = (deployment.data / "first-token").read_text().strip()
            crawls = f"http://127.0.0.1:{deployment.port}/api/v1/crawls"
            config = {
                "seeds": [site.address],
                "depth": 50,
                "workers": REPLICAS_TRIED,
                "project": "shop",
                "speed": "max",
            }
            assert crawl(crawls, token, config)["state"] == "completed"
            assert site.pages_asked == 60
            log = deployment.logs / "shop.log"
            wait_for(lambda: log.exists() and "completed" in log.read_text(), "the log of the project")

            rendered = crawl(crawls, token, {"seeds": [scripted], "render": "auto", "speed": "max"})
            pages = ask(f"{crawls}/{rendered['id']}/pages", token)["items"]
            assert sorted(page["title"] for page in pages) == [f"Page {number}" for number in range(SCRIPTED_PAGES)]
            metrics = Request(f"{deployment.renderer_url}/metrics", headers={"Authorization": "Bearer shoal"})
            with urlopen(metrics, timeout=30) as response:
                assert re.search(rb'shoal_rendered_pages_total{outcome="\w+"} [1-9]', response.read())

            for member in reversed(members):
                member.send(signal.SIGTERM)
            assert [member.wait() for member in members] == [0] * len(members)
    finally:
        redis.kill()


def start_in_order(deployment: Deployment) -> list[Shoal]:
    """Start each service when those that it waits for are healthy."""
    healthy = {"postgres", "redis"}
    left = [name for name in deployment.services if name not in healthy]
    members = []
    while left:
        name = next(name for name in left if set(deployment.services[name].waits_for) <= healthy)
        left.remove(name)
        replicas = REPLICAS_TRIED if name == "worker" else 1
        started = [deployment.start(name, replica) for replica in range(1, replicas + 1)]
        members += [] if deployment.services[name].ends else started
        healthy.add(name)
    return members


@contextmanager
def scripted_site() -> Iterator[str]:
    """The address of a site whose titles and links exist only in a browser."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, text = script_site(self.path, SCRIPTED_PAGES) or (404, {}, "")
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_words: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def crawl(crawls: str, token: str, config: dict[str, object]) -> dict[str, Any]:
    """Start a crawl over the API and wait for its end."""
    found = ask(crawls, token, config)

    def ended() -> bool:
        found.update(ask(f"{crawls}/{found['id']}", token))
        return found["state"] in ("completed", "failed")

    wait_for(ended, "the end of the crawl", seen=lambda: str(found))
    return found


def ask(url: str, token: str, body: object = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    with urlopen(Request(url, data, headers), timeout=30) as response:
        found: dict[str, Any] = json.load(response)
        return found
