"""Resolve the dependencies again and write the lock files: `locks/plain.lock` for `shoal` without extras, one file for
each extra with the packages of that extra, and `locks/dev.lock` for developers. A package has the same version in all
lock files.

    python -m tools.lock [--keep]    --keep: keep the versions in the lock files if they still meet the requirements
"""

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / "locks"
COMPILE = (
    *(str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet", "--no-config", "--universal"),
    *("--python-version", "3.11", "--generate-hashes", "--no-header", "--no-annotate"),
    *("--no-emit-index-url", "--no-emit-find-links"),
)


def main(words: list[str]) -> None:
    described = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras: dict[str, list[str]] = described["project"]["optional-dependencies"]
    wanted = {"plain": described["project"]["dependencies"]}
    wanted |= {name: packages for name, packages in extras.items() if name != "all"}
    wanted["dev"] = described["dependency-groups"]["dev"]
    LOCKS.mkdir(exist_ok=True)
    written: list[str] = []
    for name, packages in wanted.items():
        lock = LOCKS / f"{name}.lock"
        upgrade = [] if "--keep" in words else ["--upgrade"]
        command = [*COMPILE, *upgrade, *written, "--output-file", str(lock), "-"]
        subprocess.run(command, input="\n".join(packages), text=True, cwd=ROOT, check=True)
        written += ["--constraint", str(lock.relative_to(ROOT))]


if __name__ == "__main__":
    main(sys.argv[1:])
