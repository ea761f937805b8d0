"""A crawl under an audit hook of the interpreter, which sees every connection and every name lookup."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.fleet import clean_environment
from tests.support.site import Site

DEADLINE_SECONDS = 120
EVENTS = (
    "socket.connect socket.sendto socket.getaddrinfo socket.gethostbyname subprocess.Popen os.system urllib.Request"
)
WATCH = f"""
import sys, os
def watch(event, args, events={EVENTS.split()!r}, file=os.environ["SEEN"]):
    if event in events:
        with open(file, "a") as seen:
            print(event, args, file=seen)
sys.addaudithook(watch)
"""


USE_THE_PROXY = """
import asyncio, sys
from shoal.egress import AddressRule
from shoal.egress.pinning_proxy import PinningProxy
from tests.support.proxy_client import client

async def main(site: int) -> None:
    proxy = PinningProxy()
    await proxy.start()
    account = proxy.open_account(AddressRule(named=frozenset({("localhost", site)})))
    statuses = []
    for request in ("get", "connect"):
        for host in ("http://localhost:%d/", "http://127.0.0.1:%d/", "http://169.254.169.254:%d/"):
            async with client(proxy, account) as browser:
                url = host % site
                target = url if request == "get" else url.strip("htp:/")
                statuses.append((await getattr(browser, request)(target)).status)
    await proxy.aclose()
    print(proxy.port, statuses)

asyncio.run(main(int(sys.argv[1])))
"""


def test_the_proxy_for_browsers_connects_to_checked_addresses_alone(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    seen = tmp_path / "seen"
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    with Site(pages=1) as site:
        done = subprocess.run(
            [sys.executable, "-c", USE_THE_PROXY, str(site.port)],
            env=clean_environment(tmp_path) | {"PYTHONPATH": paths, "SEEN": str(seen)},
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=True,
        )
        port, statuses = done.stdout.strip().split(" ", 1)
        assert statuses == "[200, 403, 403, 200, 403, 403]"
        lines = seen.read_text().splitlines()
        connected = {line.rpartition("('")[2] for line in lines if line.startswith("socket.connect ")}
        assert connected == {f"127.0.0.1', {number}))" for number in (port, site.port)}
    resolved = [line for line in lines if not line.startswith("socket.connect ")]
    assert resolved
    assert all(line.startswith("socket.getaddrinfo ('localhost'") for line in resolved)


def test_python_itself_opens_no_connection_while_it_crawls(tmp_path: Path, sqlite_url: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    seen = tmp_path / "seen"
    environment = clean_environment(tmp_path) | {
        "PYTHONPATH": str(tmp_path),
        "SEEN": str(seen),
        "SHOAL_PAGE_ATTEMPTS": "1",
    }
    with Site(pages=20) as site:
        seeds = [site.address, "http://localhost:1/"]
        crawl = ["crawl", *seeds, "--store", sqlite_url, "--speed", "max", "--output", "out.csv"]
        subprocess.run(
            [sys.executable, "-m", "shoal", *crawl],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            timeout=DEADLINE_SECONDS,
            check=True,
        )
        assert site.pages_asked == 20
    # libcurl connects by itself, where our socket callback allows it; only the resolver looks up names.
    assert {line.partition(" ")[0] for line in seen.read_text().splitlines()} == {"socket.getaddrinfo"}
    assert all("localhost" in line for line in seen.read_text().splitlines())
