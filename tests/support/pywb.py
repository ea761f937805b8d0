"""pywb, the replay tool, over one archive. It pins old versions of our dependencies, so it has a separate
environment."""

import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.servers import free_port, wait_until
from tests.support.tool_environments import environment, plain_environment

START_SECONDS = 60


class Replayed(NamedTuple):
    """The response that the archive has for a URL."""

    status: int
    fields: dict[str, str]
    body: bytes


class _Stay(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer like any other."""

    def redirect_request(self, *_: object) -> None:
        return None


class Replay:
    """A running pywb with one collection."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/mine"
        self._opener = urllib.request.build_opener(_Stay, urllib.request.ProxyHandler({}))

    def get(self, url: str) -> Replayed:
        """The page as it was archived, unrewritten."""
        return self._get(f"{self._url}/id_/{url}")

    def is_up(self) -> bool:
        try:
            return self._get(f"{self._url}/").status == 200
        except OSError:
            return False

    def _get(self, url: str) -> Replayed:
        try:
            answer = self._opener.open(url, timeout=START_SECONDS)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            fields = {name.lower(): value for name, value in answer.headers.items()}
            return Replayed(answer.status, fields, answer.read())


def index_by_pywb(archive: Path, index: Path) -> None:
    """Write the index that pywb itself makes of an archive."""
    words = [str(environment("pywb") / "bin" / "cdx-indexer"), "--cdxj", "--sort", str(archive)]
    done = subprocess.run(words, capture_output=True, timeout=START_SECONDS, check=True, env=plain_environment())
    index.write_bytes(done.stdout)


@contextmanager
def replaying(archive: Path, index: Path, folder: Path) -> Iterator[Replay]:
    for place, file in (("archive", archive), ("indexes", index)):
        (folder / "collections" / "mine" / place).mkdir(parents=True)
        shutil.copy(file, folder / "collections" / "mine" / place)
    port = free_port()
    words = [str(environment("pywb") / "bin" / "wayback"), "--bind", "127.0.0.1", "--port", str(port)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, cwd=folder, stdout=log, stderr=log, env=plain_environment())
    try:
        replay = Replay(port)
        wait_until(replay.is_up, f"an answer of pywb on port {port}", START_SECONDS)
        yield replay
    finally:
        process.kill()
        process.wait()
