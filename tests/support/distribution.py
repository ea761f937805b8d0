"""A tiny distribution with an entry point, built as a wheel and installed by pip into a folder of its own."""

import subprocess
import sys
import zipfile
from pathlib import Path

METADATA = "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def install(folder: Path, code: str, entry_points: str) -> Path:
    """The folder to add to the path of a process that needs it."""
    wheel = folder / "tiny-1.0-py3-none-any.whl"
    info = "tiny-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny.py", code)
        archive.writestr(f"{info}/METADATA", METADATA)
        archive.writestr(f"{info}/WHEEL", WHEEL)
        archive.writestr(f"{info}/entry_points.txt", entry_points)
        archive.writestr(f"{info}/RECORD", "")
    target = folder / "site"
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    subprocess.run([*words, "--target", str(target), str(wheel)], check=True, timeout=120)
    return target
