"""Fills a store with one of everything, for the stores in `tests/stores/` that every later commit must still open.

`python -m tests.support.stored_work tests/stores NAME` writes `NAME.db.gz` (SQLite) and `NAME.sql.gz` (PostgreSQL). A
store is made once, by the commit whose format it keeps, and never made again.
"""

import fcntl
import gzip
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.support.fleet import Fleet, clean_environment, wait_for
from tests.support.processes import run_shoal, start_shoal
from tests.support.servers import Servers, ask_postgres
from tests.support.site import Site

# Where the site of the stored crawls was, and is again when they are resumed: no other program listens there.
HOST, PORT = "127.0.83.7", 8383
PAGES = 60
BEFORE_PAUSE = 20
FINISHED, INTERRUPTED, GROUP, WAITING = "finished", "interrupted", "answered", "waiting"
SCHEMA = "stored_work"
DEADLINE_SECONDS = 120


@contextmanager
def stored_site() -> Iterator[Site]:
    """Serve the site of the stored crawls. One process at a time can, and the others wait for it."""
    with Path(tempfile.gettempdir(), "shoal-stored-site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with Site(pages=PAGES, host=HOST, port=PORT) as site:
            yield site


def fill(store: str, folder: Path) -> None:
    """Crawl, audit, pause, schedule and enqueue, as users do."""
    env = clean_environment(folder) | {"DATABASE_URL": store, "SHOAL_ALLOW_NETWORKS": "127.0.0.0/8"}

    def shoal(*words: str) -> None:
        done = run_shoal(*words, cwd=folder, env=env, timeout=DEADLINE_SECONDS)
        assert done.returncode in (0, 11), done.stderr

    with stored_site() as site:
        options = ("--depth", "50", "--speed", "max")
        shoal("crawl", site.address, "--id", FINISHED, *options)
        shoal("audit", site.address, *options)
        site.forget()
        site.allowed = BEFORE_PAUSE
        process = start_shoal(
            *("crawl", site.address, "--id", INTERRUPTED, *options, "--concurrency", "1"),
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        site.wait_for_pages(BEFORE_PAUSE)
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_SECONDS) == 11
        site.allowed = None
        rules = folder / "rules.toml"
        rules.write_text('[fields.title]\ncss = "title"\n')
        with Fleet(folder, store) as fleet:
            fleet.controller(workers=1)
            shoal("crawls", "add", site.address, "--label", "state=held", *options, "--hold")
            shoal("policies", "add", site.url(1), "--frequency", "24h", "--label", "team=prices", "--rules", str(rules))
            shoal("policies", "add", "--site", site.address, "--cron", "30 6 * * 1-5", "--timezone", "Europe/Paris")
            shoal("webhooks", "add", "https://receiver.example/shoal", "--event", "crawl.job.*")
            pages = [site.url(number) for number in range(5)]
            missing = f"{site.address}missing"
            shoal("jobs", "add", *pages, missing, "--group", GROUP, "--rules", str(rules), "--retries", "0")
            wait_for(lambda: fleet.group(GROUP)["state"] == "completed", "the end of the group")
        with Fleet(folder, store) as fleet:
            fleet.controller()
            shoal("jobs", "add", *pages, "--group", WAITING)
            shoal("tokens", "create", "--role", "admin", "--name", "admin")


def write_sqlite(file: Path, folder: Path) -> None:
    store = folder / "shoal.db"
    fill(f"sqlite:///{store}", folder)
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("VACUUM")
    file.write_bytes(gzip.compress(store.read_bytes(), mtime=0))


def write_postgres(file: Path, folder: Path, servers: Servers) -> None:
    """Write a dump as plain statements, which need no program of PostgreSQL to be read again."""
    server = servers.new_postgres()
    ask_postgres(server.service.url, f"CREATE SCHEMA {SCHEMA}")
    fill(f"{server.service.url}?search_path={SCHEMA}&sslmode=disable", folder)
    words = ["pg_dump", "--inserts", "--rows-per-insert=100", "--no-owner", "--no-acl", "--no-comments"]
    dump = subprocess.run(
        [*words, "--schema", SCHEMA, server.service.url], check=True, capture_output=True, text=True
    ).stdout
    lines = [
        line for line in dump.splitlines() if line and not line.startswith(("--", "SET ", "\\", "SELECT pg_catalog"))
    ]
    file.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    server.stop()


def main(target: Path, name: str) -> None:
    servers = Servers.open()
    try:
        for suffix in ("db", "sql"):
            with tempfile.TemporaryDirectory() as folder:
                file = target / f"{name}.{suffix}.gz"
                if suffix == "db":
                    write_sqlite(file, Path(folder))
                else:
                    write_postgres(file, Path(folder), servers)
    finally:
        servers.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
