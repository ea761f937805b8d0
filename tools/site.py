"""Builds the documentation site into `site/`, offline, with the packages of `tests/support/mkdocs.lock`.

python -m tools.site [FOLDER]
"""

import subprocess
import sys
from pathlib import Path

from tests.support.tool_environments import environment, plain_environment

ROOT = Path(__file__).resolve().parent.parent


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build the site; a page that is not in the navigation, and a link that leads nowhere, are failures. (With
    `--quiet`, MkDocs would not count the warnings that make it strict.)"""
    words = [environment("mkdocs") / "bin" / "mkdocs", "build", "--strict", "--site-dir", folder]
    env = plain_environment() | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        words, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )


if __name__ == "__main__":
    folder = Path(*sys.argv[1:2] or [ROOT / "site"]).resolve()
    done = build(folder)
    print(done.stdout, end="")
    if not done.returncode:
        print(f"The site is in {folder}. To read and search it: python3 -m http.server --directory {folder}")
    sys.exit(done.returncode)
