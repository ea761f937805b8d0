"""Each extra, installed from the wheel into an empty environment: its command works, and without it one sentence names
the command that installs it."""

import json
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.request import urlopen

import pytest

from tests.support.built_package import Environment
from tests.support.script_site import script_site
from tests.support.site import Site

pytestmark = pytest.mark.exhaustive

MOST_MEGABYTES = 80.0
PAGES = 5
MISSING = 4
Install = Callable[..., Environment]


@pytest.fixture
def install(dist: Path, tmp_path: Path) -> Install:
    [wheel] = dist.glob("*.whl")
    return lambda *extras: Environment(tmp_path / "environment", wheel, *extras)


@pytest.fixture
def site() -> Iterator[Site]:
    with Site(pages=PAGES) as site:
        yield site


class Scripts(BaseHTTPRequestHandler):
    """Pages that are empty without a browser."""

    def do_GET(self) -> None:
        status, fields, text = script_site(self.path, PAGES) or (404, {}, "")
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def scripts() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Scripts) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def crawl(installed: Environment, site: Site, folder: Path, output: str = "pages.jsonl", **env: str) -> Path:
    done = installed.run("crawl", site.address, "--output", output, cwd=folder, **env)
    assert done.returncode == 0, done.stderr
    return folder / output


def test_a_plain_installation_is_small_crawls_and_names_the_extra_that_a_command_needs(
    install: Install, site: Site, tmp_path: Path
) -> None:
    plain = install()
    assert plain.megabytes < MOST_MEGABYTES
    pages = crawl(plain, site, tmp_path).read_text().splitlines()
    assert {json.loads(page)["url"] for page in pages} == site.urls
    done = subprocess.run([plain.python, "-I", "-c", "import shoal.bot, shoal.compat"], check=False)
    assert done.returncode == 0
    code = (
        "import sys; from shoal.cli.main import main; from shoal.cli.root import COMMANDS;"
        "print([name for name in COMMANDS if main([name, '--help'])], file=sys.stderr)"
    )
    helped = subprocess.run([plain.python, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert helped.stderr == "[]\n"
    manage = plain.run("crawls", "ls", "--json", cwd=tmp_path)
    [stored] = json.loads(manage.stdout)["items"]
    address = site.address
    needed: list[tuple[str, list[str], dict[str, str]]] = [
        ("server", ["serve"], {}),
        ("server", ["worker"], {}),
        ("server", ["demo"], {}),
        ("server", ["renderer"], {}),
        ("audit", ["audit", address], {}),
        ("audit", ["crawls", "diff", stored["id"], stored["id"]], {}),
        ("parquet", ["crawl", address, "--output", "pages.parquet"], {}),
        ("parquet", ["crawls", "export", stored["id"], "--output", "pages.parquet"], {}),
        ("postgres", ["crawl", address, "--store", "postgresql://127.0.0.1:1/none"], {}),
        ("postgres", ["crawls", "ls"], {"DATABASE_URL": "postgresql://127.0.0.1:1/none"}),
        ("redis", ["crawl", address], {"REDIS_URL": "redis://127.0.0.1:1/0", "SHOAL_FRONTIER": "redis"}),
        ("render", ["crawl", address, "--render", "auto"], {}),
        ("render", ["fetch", address, "--render", "auto"], {}),
    ]
    for extra, words, env in needed:
        done = plain.run(*words, cwd=tmp_path, **env)
        assert (done.returncode, done.stdout) == (MISSING, ""), (words, done)
        command = shlex.join(["uv", "pip", "install", "--python", str(plain.python), f"shoal[{extra}]"])
        fix = re.escape(f"install it with `{command}`.")
        assert re.fullmatch(rf'shoal: .* needs the extra "{extra}"; {fix}\n', done.stderr)


def test_server(install: Install, tmp_path: Path) -> None:
    server = install("server")
    process = subprocess.Popen(
        [server.shoal, "serve", "--listen", "127.0.0.1:0", "--workers", "1", "--store", "sqlite:///shoal.db"],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "GRPC_ENABLED": "true", "GRPC_LISTEN": "127.0.0.1:0"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"Shoal is listening on (\S+)", line):
                with urlopen(f"{found[1]}/readyz", timeout=30) as answer:
                    assert answer.status == 200
                break
        else:
            raise AssertionError("the server ended")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_postgres(install: Install, site: Site, tmp_path: Path, postgres_url: str) -> None:
    pages = crawl(install("postgres"), site, tmp_path, DATABASE_URL=postgres_url)
    assert len(pages.read_text().splitlines()) == PAGES


def test_redis(install: Install, site: Site, tmp_path: Path, redis_url: str) -> None:
    pages = crawl(install("redis"), site, tmp_path, REDIS_URL=redis_url, SHOAL_FRONTIER="redis")
    assert len(pages.read_text().splitlines()) == PAGES


def test_audit(install: Install, site: Site, tmp_path: Path) -> None:
    done = install("audit").run("audit", site.address, "--html", "report.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "<html" in (tmp_path / "report.html").read_text()


def test_parquet(install: Install, site: Site, tmp_path: Path) -> None:
    pages = crawl(install("parquet"), site, tmp_path, "pages.parquet")
    assert pages.read_bytes()[:4] == b"PAR1"


def test_render(install: Install, tmp_path: Path, chromium: str, scripts: str) -> None:
    words = ("crawl", scripts, "--render", "always", "--output", "pages.md")
    done = install("render").run(*words, cwd=tmp_path, SHOAL_CHROMIUM=chromium)
    assert done.returncode == 0, done.stderr
    assert "text number 0" in "".join(page.read_text() for page in (tmp_path / "pages.md").glob("*/*.md"))


def test_content(install: Install, site: Site, tmp_path: Path) -> None:
    content = install("content")
    assert len(list(crawl(content, site, tmp_path, "pages.md").glob("*/*.md"))) == PAGES
    code = "from shoal.extract.main_text import _trafilatura; assert _trafilatura()"
    subprocess.run([content.python, "-I", "-c", code], check=True)
