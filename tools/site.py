"""Builds the documentation site into the folder `site/`, offline, with the packages of `tests/support/mkdocs.lock`.

python -m tools.site [FOLDER]
"""

import subprocess
import sys
from pathlib import Path

from tests.support.tool_environments import environment, plain_environment

ROOT = Path(__file__).resolve().parent.parent


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build the site. The build fails if a page is not in the navigation, or a link leads nowhere. `--quiet` is not
    used, because MkDocs would then ignore the warnings that make a strict build fail."""
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
