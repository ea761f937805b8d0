"""Finds Chromium on this machine, and the command line with which it is started."""

import os
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from shoal.base.errors import BadConfig
from shoal.base.settings import RenderSettings

# The headless shell comes first: browser contexts take half the time and memory that they take in the full browser.
NAMES = (
    "chromium-headless-shell",
    "chrome-headless-shell",
    "headless_shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)
INSTALL = (
    "install it (Debian: `apt install chromium-headless-shell`, Fedora: `dnf install chromium-headless`, "
    "macOS: `brew install --cask chromium`), or set SHOAL_CHROMIUM to its path"
)
FLAGS = (
    "--remote-debugging-pipe",
    "--headless",
    "--block-new-web-contents",
    "--deny-permission-prompts",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-breakpad",
    "--disable-component-extensions-with-background-pages",
    "--disable-crash-reporter",
    "--disable-dev-shm-usage",  # containers often have a very small /dev/shm
    "--disable-gpu",
    "--disable-hang-monitor",
    "--disable-notifications",
    "--disable-renderer-backgrounding",
    "--disable-speech-api",
    "--hide-scrollbars",
    "--js-flags=--max-old-space-size=512",
    "--log-level=3",
    "--metrics-recording-only",
    "--mute-audio",
    "--no-default-browser-check",
    "--no-service-autorun",
    "--password-store=basic",
    "--use-mock-keychain",
)
NO_SANDBOX = "--no-sandbox"
SANDBOX_MISSING = ("No usable sandbox", "setuid_sandbox_host", "namespace_sandbox", "Running as root without")
LONGEST_TEMP = 60
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "FONTCONFIG_PATH", "FONTCONFIG_FILE", "LD_LIBRARY_PATH")


def find_chromium(settings: RenderSettings) -> Path:
    """Return the binary to start; raise `BadConfig` with the fix if there is none."""
    if settings.chromium:
        given = shutil.which(str(settings.chromium))
        if given is None:
            raise BadConfig("SHOAL_CHROMIUM", f"is {settings.chromium}, which is not a program", INSTALL)
        return binary_behind(Path(given))
    found = next((Path(path) for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        found = next(iter(sorted(Path("/Applications").glob("*Chrom*.app/Contents/MacOS/*Chrom*"))), None)
    if found is None:
        raise BadConfig("Chromium", "was not found on this machine", INSTALL)
    return binary_behind(found)


def has_browser(settings: RenderSettings) -> bool:
    """Return whether this process can render: a render service is named, or the machine has a browser."""
    if settings.url:
        return True
    try:
        find_chromium(settings)
    except BadConfig:
        return False
    return True


@cache
def binary_behind(path: Path) -> Path:
    """Return the browser itself if the path is Debian's launcher script, which would stay as a process of its own."""
    beside = Path("/usr/lib/chromium") / path.name
    try:
        with path.open("rb") as file:
            is_script = file.read(2) == b"#!"
    except OSError:
        is_script = False
    return beside if is_script and path.parent == Path("/usr/bin") and os.access(beside, os.X_OK) else path


def command_line(binary: Path, profile: Path, agent: str, network: Sequence[str], *, sandbox: bool) -> list[str]:
    """Return the command that starts the browser with a profile of its own."""
    own = [f"--user-data-dir={profile}", f"--user-agent={agent}"]
    return [str(binary), *FLAGS, *network, *own, *([] if sandbox else [NO_SANDBOX]), "about:blank"]


def environment(profile: Path) -> dict[str, str]:
    """Return the environment of the browser: without the secrets of this process, since the browser runs untrusted
    code."""
    ours = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    if len(ours.get("TMPDIR", "")) > LONGEST_TEMP:
        del ours["TMPDIR"]  # the path of a socket in it would be too long for the kernel
    return {**ours, "XDG_CONFIG_HOME": str(profile), "XDG_CACHE_HOME": str(profile)}
