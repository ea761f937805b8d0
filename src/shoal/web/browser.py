"""A browser process: code to find, start, watch and end it."""

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from shoal.base.clock import Clock
from shoal.base.errors import BadConfig
from shoal.base.machine import started
from shoal.base.settings import RenderSettings
from shoal.web.cdp import BrowserLost, CdpConnection, CdpSession, CommandFailed, Params

# The headless shell comes first, because its browser contexts need half the time and memory of the full browser's.
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
    """Return whether this process can render, because a render service is configured or the machine has a browser."""
    if settings.url:
        return True
    try:
        find_chromium(settings)
    except BadConfig:
        return False
    return True


@cache
def binary_behind(path: Path) -> Path:
    """Return the browser binary. If the path is Debian's launcher script, return the binary that the script starts,
    because the script would stay as a separate process."""
    beside = Path("/usr/lib/chromium") / path.name
    try:
        with path.open("rb") as file:
            is_script = file.read(2) == b"#!"
    except OSError:
        is_script = False
    return beside if is_script and path.parent == Path("/usr/bin") and os.access(beside, os.X_OK) else path


def command_line(binary: Path, profile: Path, agent: str, network: Sequence[str], *, sandbox: bool) -> list[str]:
    """Return the command that starts the browser with a separate profile."""
    own = [f"--user-data-dir={profile}", f"--user-agent={agent}"]
    return [str(binary), *FLAGS, *network, *own, *([] if sandbox else [NO_SANDBOX]), "about:blank"]


def environment(profile: Path) -> dict[str, str]:
    """Return the environment of the browser. It lacks the secrets of this process, because the browser runs untrusted
    code."""
    ours = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    if len(ours.get("TMPDIR", "")) > LONGEST_TEMP:
        del ours["TMPDIR"]  # socket paths in this folder would be too long for the kernel
    return {**ours, "XDG_CONFIG_HOME": str(profile), "XDG_CACHE_HOME": str(profile)}


FOLDER = f"shoal-browsers-{os.getuid()}"
OWNER = "owner"
LOG = "chromium.log"
START_SECONDS = 30.0
COMMAND_SECONDS = 10.0  # for commands to the browser itself: a browser that takes longer hangs
EXIT_SECONDS = 2.0
START_ATTEMPTS, START_PAUSE = 3, 1.0  # the machine may be short of memory for a moment
# The shell passes its pipes to Chromium as descriptors 3 and 4, and is then replaced by Chromium.
PIPED = 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null'


class Browser:
    """A browser that was started. `pages` counts the pages that it has opened."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", connection: CdpConnection, folder: Path, *, sandbox: bool
    ) -> None:
        self._process = process
        self._connection = connection
        self._folder = folder
        self.has_sandbox = sandbox
        self.pages = 0
        self._sessions: dict[str, str] = {}  # by target
        self._crash_listeners: dict[str, Callable[[], None]] = {}  # by target
        connection.browser.on_event = self._on_event
        connection.on_lost = self._on_lost

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_lost(self) -> bool:
        return self._connection.is_lost or self._process.poll() is not None

    async def call(self, method: str, **params: object) -> Params:
        """Send a command to the browser itself. A browser that does not respond in time hangs: kill it and raise
        `BrowserLost`."""
        try:
            return await self._connection.browser.call(method, COMMAND_SECONDS, **params)
        except TimeoutError:
            self.kill()
            raise BrowserLost(f"the browser did not respond to {method} within {COMMAND_SECONDS:g} s") from None

    def post(self, method: str, **params: object) -> None:
        self._connection.browser.post(method, **params)

    async def open_target(self, context_id: str, on_event: Callable[[str, Params], None]) -> tuple[str, CdpSession]:
        """Open an empty page in a context and attach to it."""
        created = await self.call("Target.createTarget", url="about:blank", browserContextId=context_id)
        target_id: str = created["targetId"]
        attached = await self.call("Target.attachToTarget", targetId=target_id, flatten=True)
        self._sessions[target_id] = attached["sessionId"]
        self.pages += 1
        return target_id, self._connection.session(attached["sessionId"], on_event)

    def attach(self, session_id: str, on_event: Callable[[str, Params], None]) -> CdpSession:
        """Start to receive the events of a page's frame or worker."""
        return self._connection.session(session_id, on_event)

    def on_crash(self, target_id: str, listener: Callable[[], None]) -> None:
        """Call the listener when the target or the whole browser crashes."""
        self._crash_listeners[target_id] = listener

    def close_target(self, target_id: str) -> None:
        """Forget a target that is being closed."""
        self._crash_listeners.pop(target_id, None)
        if (session_id := self._sessions.pop(target_id, None)) is not None:
            self._connection.end_session(session_id)

    def detach(self, session_id: str) -> None:
        self._connection.end_session(session_id)

    def kill(self) -> None:
        """Kill the browser with all its processes."""
        kill_group(self.pid)
        self._connection.lose()

    def end(self) -> None:
        """Kill the browser, wait for its end and remove its files. A regular shutdown would only take longer, and the
        browser has nothing to save."""
        self.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_SECONDS)
        remove_folder(self._folder)

    async def close(self) -> None:
        """Kill the browser, wait for its end and remove its files, without blocking the event loop."""
        self.kill()
        await asyncio.to_thread(self.end)

    def _on_lost(self) -> None:
        for listener in list(self._crash_listeners.values()):
            listener()

    def _on_event(self, method: str, params: Params) -> None:
        if method == "Target.targetCrashed":
            if (listener := self._crash_listeners.get(params["targetId"])) is not None:
                listener()
        elif method == "Target.targetCreated" and params["targetInfo"].get("openerId"):
            self.post("Target.closeTarget", targetId=params["targetInfo"]["targetId"])  # a pop-up


async def start_browser(binary: Path, agent: str, network: Sequence[str], clock: Clock) -> Browser:
    """Start a browser, with its sandbox if the machine allows a sandbox. Raise `BadConfig` if the browser does not
    start."""
    problem = ""
    sandbox = os.geteuid() != 0  # Chromium has no sandbox for root
    for attempt in range(START_ATTEMPTS):
        folder = make_folder()
        try:
            return await _start(binary, agent, network, folder, sandbox=sandbox)
        except (BrowserLost, CommandFailed, OSError, TimeoutError) as error:
            problem = _last_words(folder) or str(error) or type(error).__name__
            remove_folder(folder)
        if any(words in problem for words in SANDBOX_MISSING):
            sandbox = False
        elif attempt + 1 < START_ATTEMPTS:
            await clock.sleep(START_PAUSE)
    raise BadConfig("Chromium", f"does not start ({problem})", f"run {binary} to see why, or set SHOAL_CHROMIUM")


async def _start(binary: Path, agent: str, network: Sequence[str], folder: Path, *, sandbox: bool) -> Browser:
    command = command_line(binary, folder, agent, network, sandbox=sandbox)
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    connection = CdpConnection()
    process: subprocess.Popen[bytes] | None = None
    try:
        try:
            with (folder / LOG).open("wb") as log:
                process = subprocess.Popen(  # noqa: ASYNC220 - a fork takes a millisecond
                    ("/bin/sh", "-c", PIPED, "sh", *command),
                    stdin=theirs_in,
                    stdout=theirs_out,
                    stderr=log,
                    env=environment(folder),
                    cwd=folder,
                    start_new_session=True,
                )
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        (folder / OWNER).write_text(f"{os.getpid()} {started(os.getpid())} {process.pid} {started(process.pid)}\n")
        await connection.open(ours_in, ours_out)
        browser = Browser(process, connection, folder, sandbox=sandbox)
        async with asyncio.timeout(START_SECONDS):
            watch = [{"type": "page", "exclude": False}, {"exclude": True}]
            await connection.browser.send("Target.setDiscoverTargets", discover=True, filter=watch)
        return browser
    except BaseException:
        connection.lose()
        if process is not None:
            kill_group(process.pid)
            process.wait()
        raise


def kill_group(pid: int) -> None:
    """Kill the process group that a browser leads."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def make_folder() -> Path:
    """Create the folder of a browser, which holds its profile, its log, and the file that names its owner."""
    root = Path(tempfile.gettempdir()) / FOLDER
    with suppress(FileExistsError):
        root.mkdir(mode=0o700)
    if not _is_ours(root):
        raise BadConfig(str(root), "belongs to another user, or others may use it", "remove it, or set TMPDIR")
    return Path(tempfile.mkdtemp(dir=root))


def _is_ours(root: Path) -> bool:
    """Return whether only our user can use a folder. Any user could have created this folder in the temporary directory
    before us, to read profiles there or to name our processes as browsers to be killed."""
    try:
        found = root.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def remove_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def reap() -> int:
    """End the browsers whose owners are gone; return their number. Safe while other processes render."""
    root, count = Path(tempfile.gettempdir()) / FOLDER, 0
    for folder in root.iterdir() if _is_ours(root) else ():
        try:
            owner, owner_began, pid, began = (folder / OWNER).read_text().split(" ")
        except (OSError, ValueError):
            continue  # this browser is being started or removed
        if started(int(owner)) == owner_began:
            continue
        # The owner's pid may belong to a different process by now.
        if (now := started(int(pid))) in ("", began.strip()):
            kill_group(int(pid))  # also kills the children if only they are left
            count += now != ""
        remove_folder(folder)
    return count


def _last_words(folder: Path) -> str:
    """Return the end of a browser's stderr output."""
    with suppress(OSError):
        lines = (folder / LOG).read_text(errors="replace").strip().splitlines()
        return " ".join(lines[-3:])[:500]
    return ""
