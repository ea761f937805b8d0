"""A crawl under an audit hook of the interpreter, which sees every connection and every name lookup."""

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
    # libcurl connects by itself, where our own socket callback lets it; names are asked for by the resolver alone.
    assert {line.partition(" ")[0] for line in seen.read_text().splitlines()} == {"socket.getaddrinfo"}
    assert all("localhost" in line for line in seen.read_text().splitlines())
