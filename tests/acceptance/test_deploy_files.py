"""The files in `deploy/` and the light compose file: what tools say of them, and what runs with them."""

import json
import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from shoal.base.settings_loader import CATALOGUE
from tests.support.compose import ROOT, build_stages, fill_in, read_compose
from tests.support.debian_packages import program_of
from tests.support.fleet import Fleet, wait_for
from tests.support.servers import free_port
from tests.support.site import Site
from tests.support.tool_environments import environment

DEPLOY = ROOT / "deploy"
LIGHT = ROOT / "compose.light.yaml"
UNITS = sorted((DEPLOY / "systemd").iterdir(), key=lambda path: path.name)
PROXIES = {"nginx": "usr/sbin/nginx", "caddy": "usr/bin/caddy"}
NOT_OURS = {"HOME", "GRPC_NODE_ID"}


def directives(unit: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", unit.read_text(), flags=re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_each_unit_is_confined_and_runs_a_command_of_ours(unit: Path) -> None:
    found = directives(unit)
    assert found["CapabilityBoundingSet"] == [""]
    for name in ("NoNewPrivileges", "PrivateTmp", "PrivateDevices", "ProtectHome", "ProtectKernelModules"):
        assert found[name] == ["true"], name
    assert found["ProtectSystem"] == ["strict"]
    assert found.get("DynamicUser") == ["true"] or found["User"] == ["shoal"]
    settings = {word.partition("=")[0] for line in found["Environment"] for word in line.split()} - NOT_OURS
    assert settings <= CATALOGUE.keys()
    assert found["ExecStart"][0].startswith("/opt/shoal/bin/shoal ")
    assert unit.name.removesuffix(".service").rstrip("@") in ("shoal-controller", "shoal-worker", "shoal-renderer")


def test_the_images_are_named_for_two_architectures() -> None:
    targets = json.loads((DEPLOY / "docker-bake.json").read_text())["target"]
    assert {target["target"] for target in targets.values()} == set(build_stages()) - {"build"}
    assert targets["shoal"]["platforms"] == ["linux/amd64", "linux/arm64"]
    assert targets["chromium"]["inherits"] == ["shoal"]


@pytest.mark.exhaustive
def test_the_health_check_of_the_images_asks_an_address_if_there_is_one() -> None:
    [check] = re.findall(r"^HEALTHCHECK .*\\\n *CMD (\[.*\])$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    python, *words = json.loads(check)
    assert python == "python"
    for url, is_healthy in (("", True), (f"http://127.0.0.1:{free_port()}/healthz", False)):
        done = subprocess.run([sys.executable, *words], env={"HEALTH_URL": url}, capture_output=True, check=False)
        assert (done.returncode == 0) == is_healthy


@pytest.mark.exhaustive
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    systemd = program_of("systemd", "usr/bin/systemd-analyze")
    shipped = systemd.parent / "lib/systemd/system"  # if the package was unpacked; otherwise the machine has its units
    env = {"SYSTEMD_UNIT_PATH": f"{shipped}:"} if shipped.exists() else {}
    for unit in UNITS:
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/shoal/bin/shoal", "/bin/true"))
    units = [str(tmp_path / unit.name) for unit in UNITS]
    done = subprocess.run([systemd, "verify", *units], capture_output=True, text=True, check=False, env=env)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.exhaustive
def test_the_light_file_follows_the_compose_specification() -> None:
    check = environment("containers") / "bin" / "check-jsonschema"
    done = subprocess.run(
        [check, "--builtin-schema", "vendor.compose-spec", LIGHT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.exhaustive
def test_the_one_container_of_the_light_file_crawls(tmp_path: Path) -> None:
    [service] = fill_in(read_compose(LIGHT)["services"], {}).values()
    assert (service["read_only"], service["cap_drop"], service["volumes"]) == (True, ["ALL"], ["data:/data"])
    assert service["build"]["target"] in build_stages()

    env = {name: value.replace("/data", str(tmp_path)) for name, value in service["environment"].items()}
    with Site(pages=3) as site, Fleet(tmp_path, env.pop("DATABASE_URL"), **env) as fleet:
        places = {"/data": str(tmp_path), "0.0.0.0:8700": f"127.0.0.1:{fleet.port}"}
        words = [re.sub("|".join(places), lambda found: places[found[0]], word) for word in service["command"]]
        controller = fleet.command("light", *words)
        wait_for(lambda: is_up(f"http://127.0.0.1:{fleet.port}/healthz"), "the container")
        token = (tmp_path / "first-token").read_text().strip()
        body = json.dumps({"seeds": [site.address], "speed": "max"}).encode()
        crawls = f"http://127.0.0.1:{fleet.port}/api/v1/crawls"
        crawl = json.load(urlopen(request(crawls, token, body), timeout=30))
        wait_for(lambda: state_of(f"{crawls}/{crawl['id']}", token) == "completed", "the end of the crawl")
        assert (tmp_path / "shoal.db").exists()
        controller.send(signal.SIGTERM)
        assert controller.wait(60) == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("proxy", PROXIES)
def test_a_controller_works_behind_the_example_of_each_proxy(proxy: str, sqlite_url: str, tmp_path: Path) -> None:
    program = program_of(proxy, PROXIES[proxy])
    port = free_port()
    public = {"SHOAL_PUBLIC_URL": f"https://localhost:{port}/shoal/", "SHOAL_TRUSTED_PROXIES": "127.0.0.1/32"}
    with Fleet(tmp_path, sqlite_url, **public) as fleet:
        words = ["--listen", f"127.0.0.1:{fleet.port}", "--first-token-file", str(tmp_path / "token")]
        fleet.command("controller", "serve", *words)
        with running(program, port, fleet.port, tmp_path):
            address = f"https://localhost:{port}/shoal"
            wait_for(lambda: is_up(f"{address}/healthz"), f"{proxy} and the controller behind it")
            token = (tmp_path / "token").read_text().strip()
            console = ask(request(f"{address}/login")).read().decode()
            assert 'href="/shoal/' in console
            body = b'{"seeds": ["https://example.com/"], "start": false}'
            crawl = json.load(ask(request(f"{address}/api/v1/crawls", token, body)))
            with ask(request(f"{address}/api/v1/crawls/{crawl['id']}/events", token)) as events:
                assert events.readline() == b"retry: 2000\n"  # the stream has not ended: it is not buffered


def request(url: str, token: str = "", body: bytes | None = None) -> Request:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    return Request(url, body, headers)


def state_of(url: str, token: str) -> str:
    return str(json.load(urlopen(request(url, token), timeout=30))["state"])


def ask(what: Request) -> HTTPResponse:
    """Send a request to a server whose certificate nobody signed."""
    found: HTTPResponse = urlopen(what, timeout=30, context=ssl._create_unverified_context())
    return found


def is_up(url: str) -> bool:
    try:
        return ask(Request(url)).status == 200
    except OSError:
        return False


@contextmanager
def running(program: Path, port: int, controller: int, folder: Path) -> Iterator[None]:
    """Run a proxy with its example, on ports and with a certificate of this test."""
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*words, "-keyout", folder / "key", "-out", folder / "cert"], check=True, capture_output=True)
    make = nginx_command if program.name == "nginx" else caddy_command
    command = [program, *make(port, controller, folder)]
    with subprocess.Popen(
        command,
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            yield
        finally:
            server.terminate()


def nginx_command(port: int, controller: int, folder: Path) -> list[str]:
    example = (DEPLOY / "proxy" / "nginx.conf").read_text().replace("8700", str(controller))
    example = re.sub(r"(ssl_certificate_key )\S+;", rf"\1{folder}/key;", example)
    example = re.sub(r"(ssl_certificate )\S+;", rf"\1{folder}/cert;", example)
    example = re.sub(r"^ *listen \[.*\n", "", example, flags=re.MULTILINE).replace("listen 443", f"listen {port}")
    example = example.replace("listen 80;", f"listen {free_port()};").replace(
        "server_name example.com", "server_name _"
    )
    folders = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    logs = f"error_log {folder}/error.log;"
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; {logs} events {{}} http {{ access_log off; {folders} {example} }}"
    )
    return ["-p", str(folder), "-c", str(folder / "nginx.conf")]


def caddy_command(port: int, controller: int, folder: Path) -> list[str]:
    example = (DEPLOY / "proxy" / "Caddyfile").read_text().replace("8700", str(controller))
    own = f"https://localhost:{port} {{\n\ttls {folder}/cert {folder}/key"
    options = "{\n\tadmin off\n\tauto_https disable_redirects\n}\n"
    (folder / "Caddyfile").write_text(options + example.replace("example.com {", own))
    return ["run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]
