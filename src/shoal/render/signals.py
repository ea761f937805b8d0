"""The signals of rendering, from which log lines and metrics are made."""

from shoal.base.signals import Signal


class BrowserStarted(Signal, frozen=True, kw_only=True):
    """A browser was started. Without a sandbox, a page that breaks out of the browser has the rights of this user."""

    pid: int
    sandbox: bool
    seconds: float


class BrowserEnded(Signal, frozen=True, kw_only=True):
    """A browser was closed (`recycled`, `restarted`, `closed`), or replaced because it crashed or hung."""

    pid: int
    how: str
    pages: int


class BrowsersReaped(Signal, frozen=True, kw_only=True):
    """Browsers that a killed process had left behind were ended."""

    count: int


class PageRendered(Signal, frozen=True, kw_only=True):
    """A page was rendered, or could not be: `outcome` is `rendered` or the code of the failure."""

    outcome: str
    seconds: float
    requests: int
