"""The script of axe-core, which finds violations of accessibility rules; fetched from the npm registry once."""

import subprocess
import tarfile
from functools import cache
from tempfile import TemporaryDirectory

from tests.support.programs import ServerUnavailable
from tests.support.tool_environments import ROOT, plain_environment

VERSION = "4.14.0"
FETCH_SECONDS = 120


@cache
def axe_script() -> str:
    """Return the source of axe-core."""
    kept = ROOT / ".venv" / f"axe-core-{VERSION}.js"
    if not kept.exists():
        with TemporaryDirectory() as folder:
            words = ["npm", "pack", f"axe-core@{VERSION}", "--silent", "--pack-destination", folder]
            try:
                done = subprocess.run(
                    words, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False, env=plain_environment()
                )
            except FileNotFoundError:
                raise ServerUnavailable("axe-core cannot be fetched without npm: install Node.js") from None
            if done.returncode:
                raise ServerUnavailable(f"axe-core cannot be fetched:\n{done.stderr[-2000:]}")
            with tarfile.open(f"{folder}/axe-core-{VERSION}.tgz") as archive:
                member = archive.extractfile("package/axe.min.js")
                assert member is not None
                kept.write_bytes(member.read())
    return kept.read_text()
