"""One page in the browser: opens the page in a separate context, lets its scripts run, and reads the result.

Every request of the page is paused once, so that robots.txt, the limits and the option `block` apply to the request. If
the caller has already fetched the document, the page's own request is answered with this document. In that case,
scripts cannot navigate away: the URLs that they tried to open are returned like links.
"""

import asyncio
import base64
from collections import Counter
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, Final

import orjson

from shoal.base.clock import Clock
from shoal.base.errors import ShoalError
from shoal.base.url import Url, origin
from shoal.egress import Failure
from shoal.egress.pinning_proxy import ProxyAccount
from shoal.hosts.robots_cache import RobotsRules
from shoal.web.browser import Browser
from shoal.web.cdp import BrowserLost, CdpSession, CommandFailed, Params
from shoal.web.network import OriginConnections, WaitingRequest, allows
from shoal.web.renderer import MOST_STEPS, Document, RenderCounts, RenderedPage, RenderRequest

QUIET_SECONDS: Final = 0.25  # the page has settled after this time without a request and without a change
TIMER_SECONDS: Final = 2.0  # wait for timers that are due within this time after the last request or change
CHANGING_SECONDS: Final = 5.0  # the longest wait for a page that changes without requests
STEP_SECONDS: Final = 5.0  # the longest wait after each scroll or click, and after the selector was found
READ_SECONDS: Final = (
    5.0  # the longest time to read a loaded page: a page that does not respond is busy in an endless loop
)
PICTURE_SECONDS: Final = 10.0
MOST_REQUESTS: Final = 1000
MOST_REPEATS: Final = 3  # wait for at most this many requests of the same URL, because a page may poll
# Do not wait for these requests: some never end, others add nothing to the page.
UNAWAITED: Final = frozenset({"EventSource", "Media", "Ping"})
MOST_DIALOGS: Final = 100
MOST_ERRORS, LONGEST_ERROR = 50, 500
MOST_NAVIGATIONS: Final = 100
BLOCKABLE: Final = {"images": "Image", "fonts": "Font", "media": "Media"}
REFUSAL: Final = "shoal-refusal"  # header of responses that our proxy itself created
NO_LENGTH: Final = frozenset({"content-encoding", "content-length", "transfer-encoding"})


class PageCrashed(Exception):
    """The process of the page crashed, or was killed because it used too much memory."""


class BrowserTab:
    """Renders one page."""

    def __init__(
        self,
        browser: Browser,
        request: RenderRequest,
        robots: RobotsRules | None,
        connections: OriginConnections,
        proxy: ProxyAccount | None,
        clock: Clock,
    ) -> None:
        self._browser = browser
        self._request = request
        self._robots = robots
        self._connections = connections
        self._proxy = proxy
        self._clock = clock
        self._origin = origin(Url(request.url))
        self._blocked = {BLOCKABLE[kind] for kind in request.block}
        self._target_id = ""
        self._page: CdpSession | None = None
        self._frames: list[str] = []
        self._is_answered = request.document is None
        self._in_flight: dict[str, str] = {}  # origin by request id; an empty text until the request may continue
        self._held: set[str] = set()  # requests that count against the limit of their origin
        self._awaited: set[str] = set()  # requests without which the page is not complete
        self._repeats: Counter[int] = Counter()  # number of requests by the URL's hash, because URLs may be long
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._dialogs = 0
        self._last_activity = clock.monotonic()
        self._changed = asyncio.Event()
        self._has_begun = False
        self._is_loaded = False
        self._is_crashed = False
        self.failure: Failure | None = None
        document = request.document
        self.page = RenderedPage(
            url=request.url,
            status=None if document is None else document.status,
            headers=[] if document is None else document.headers,
            counts=RenderCounts(),
        )

    async def render(self, context_id: str, seconds: float, agent: str, max_bytes: int) -> RenderedPage | Failure:
        """Render the page in a context; wait for the page at most `seconds`. Raises `PageCrashed` and `BrowserLost`."""
        deadline = self._clock.monotonic() + seconds
        self._target_id, page = await self._browser.open_target(context_id, self._on_page_event)
        self._page = page
        self._browser.on_crash(self._target_id, self._crashed)
        try:
            await self._within(self._prepare(page, context_id, agent), deadline)
            failure = await self._navigate(page, deadline)
            if failure is None:
                await self._wait(page, deadline)
                failure = await self._read(page, max_bytes, min(seconds, READ_SECONDS))
        finally:
            self._close()
        return self.failure or failure or self.page

    def _prepare(self, page: CdpSession, context_id: str, agent: str) -> "asyncio.Future[Params]":
        """Send the commands that set up the page; return the future of the last command. Commands are executed in
        order, but commands that have not ended when the page navigates would be lost with the page's first process."""
        request, view = self._request, self._request.viewport
        self._browser.post("Browser.setDownloadBehavior", behavior="deny", browserContextId=context_id)
        if request.cookies:
            cookies = [_cookie(self._request.url, cookie) for cookie in request.cookies]
            self._browser.post("Storage.setCookies", cookies=cookies, browserContextId=context_id)
        page.post("Page.enable")
        page.post("Runtime.enable")
        page.post("Network.enable", maxTotalBufferSize=0, maxResourceBufferSize=0, maxPostDataSize=0)
        page.post("Network.setBypassServiceWorker", bypass=True)
        page.post("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        page.post(
            "Emulation.setDeviceMetricsOverride",
            width=view.width,
            height=view.height,
            deviceScaleFactor=1,
            mobile=False,
        )
        if request.user_agent and request.user_agent != agent:
            page.post("Emulation.setUserAgentOverride", userAgent=request.user_agent)
        self._intercept(page)
        return page.send("Runtime.evaluate", expression="0")

    def _intercept(self, session: CdpSession) -> None:
        session.post("Fetch.enable", patterns=[{"urlPattern": "*"}], handleAuthRequests=self._proxy is not None)
        session.post("Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=True, flatten=True)

    async def _navigate(self, page: CdpSession, deadline: float) -> Failure | None:
        url = self._request.url
        try:
            answer = await self._within(page.send("Page.navigate", url=url), deadline)
        except TimeoutError:
            return Failure("render_timeout", "The page did not respond in time.", retryable=True, url=url)
        if self.failure is not None:
            return self.failure
        if error := answer.get("errorText"):
            return Failure("render_failed", f"The browser could not load the page ({error}).", retryable=True, url=url)
        if answer.get("isDownload"):
            return Failure("not_a_page", "The URL leads to a download.", retryable=False, url=url)
        return None

    async def _wait(self, page: CdpSession, deadline: float) -> None:
        """Wait until the page is ready, and interact with it. When the time is up, the page is read as it is."""
        request = self._request
        try:
            await self._until(lambda: self._is_loaded, deadline)
            self.page.ended = "load"
            if request.selector is not None:
                await self._evaluate(page, WAIT_FOR, request.selector, deadline)
                if request.wait == "networkidle":
                    await self._settle_briefly(page, deadline)
                self.page.ended = "selector"
            elif request.wait == "networkidle":
                await self._settle(page, deadline)
                self.page.ended = "settled"
            for script, argument in ((SCROLL, ""), (CLICK, request.click or "")):
                if (script is SCROLL and not request.scroll) or (script is CLICK and not argument):
                    continue
                for _ in range(MOST_STEPS):
                    if not await self._evaluate(page, script, argument, deadline):
                        break
                    await self._settle_briefly(page, deadline)
        except TimeoutError:
            self.page.is_complete = False
            self.page.ended = "timeout"

    async def _read(self, page: CdpSession, max_bytes: int, seconds: float) -> Failure | None:
        url = self._request.url
        try:
            found = await self._evaluate(page, HTML, max_bytes, self._clock.monotonic() + seconds)
        except TimeoutError:
            return Failure("render_timeout", "The scripts of the page did not end in time.", retryable=True, url=url)
        if not isinstance(found, dict) or found.get("html") is None:
            message = "The rendered page exceeds SHOAL_MAX_DECODED."
            return Failure("decompressed_too_large", message, retryable=False, url=url)
        self.page.html = found["html"]
        if self._request.document is None:
            self.page.url = found["url"]
        if self._request.screenshot:
            self.page.screenshot = await self._picture(page, "Page.captureScreenshot", format="png")
        if self._request.pdf:
            self.page.pdf = await self._picture(page, "Page.printToPDF", printBackground=True)
        return None

    async def _picture(self, page: CdpSession, method: str, **params: Any) -> bytes | None:
        try:
            taken = await self._within(page.send(method, **params), self._clock.monotonic() + PICTURE_SECONDS)
        except (TimeoutError, CommandFailed):
            self.page.is_complete = False
            return None
        return base64.b64decode(taken["data"])

    async def _evaluate(self, page: CdpSession, script: str, argument: object, deadline: float) -> Any:
        """Call a script function in the page. If the page navigates meanwhile, call the function again."""
        expression = f"({script})({orjson.dumps(argument).decode()})"
        while True:
            command = page.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
            try:
                answer = await self._within(command, deadline)
            except CommandFailed:  # the script's context was destroyed
                await self._until(lambda: False, min(deadline, self._clock.monotonic() + QUIET_SECONDS), strict=False)
                if self._clock.monotonic() >= deadline:
                    raise TimeoutError from None
                continue
            return answer["result"].get("value")

    # Waiting

    async def _within(self, command: "asyncio.Future[Params]", deadline: float) -> Params:
        """Wait for a command. Raise `PageCrashed` as soon as the page crashes."""
        command.add_done_callback(lambda _: self._changed.set())
        await self._until(command.done, deadline)
        return command.result()

    async def _until(self, is_done: Callable[[], bool], deadline: float, *, strict: bool = True) -> None:
        while True:
            if self._browser.is_lost:
                raise BrowserLost("the browser is gone")
            if self._is_crashed:
                raise PageCrashed
            if is_done():
                return
            left = deadline - self._clock.monotonic()
            if left <= 0:
                if strict:
                    raise TimeoutError
                return
            self._changed.clear()
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _settle(self, page: CdpSession, deadline: float) -> None:
        """Wait until the page has settled: no request is in flight, no short timer is about to fire, and for a moment
        there was neither a request nor a change of the document. Raises `TimeoutError` at the deadline, and if the page
        keeps changing without a request."""
        began = self._clock.monotonic()
        self._last_activity = max(self._last_activity, began - QUIET_SECONDS / 2)
        while True:
            await self._until(lambda: not self._awaited, deadline)
            unchanged, due = _quiet(await self._evaluate(page, QUIET, None, deadline))
            now = self._clock.monotonic()
            last_seen = max(self._last_activity, now - unchanged)
            quiet_at = last_seen + QUIET_SECONDS
            if due is not None and now + due <= last_seen + TIMER_SECONDS:
                quiet_at = max(quiet_at, now + due + QUIET_SECONDS / 2)
            if now >= quiet_at and not self._awaited:
                return
            if now >= max(began, self._last_activity) + CHANGING_SECONDS:
                raise TimeoutError
            await self._until(lambda: bool(self._awaited), min(quiet_at, deadline), strict=False)
            if self._clock.monotonic() >= deadline:
                raise TimeoutError

    async def _settle_briefly(self, page: CdpSession, deadline: float) -> None:
        """Wait until the page has settled, for a few seconds at most. If the page has not settled by then, continue
        without an error unless the deadline has passed."""
        step_ends = self._clock.monotonic() + STEP_SECONDS
        try:
            await self._settle(page, min(deadline, step_ends))
        except TimeoutError:
            if self._clock.monotonic() >= deadline:
                raise

    # Events

    def _on_page_event(self, method: str, params: Params) -> None:
        match method:
            case "Page.frameNavigated" if params["frame"]["id"] == self._target_id:
                self._has_begun = True
            case "Page.loadEventFired":
                self._loaded()
            case "Page.frameStoppedLoading" if params["frameId"] == self._target_id and self._has_begun:
                self._loaded()  # this event also comes if scripts tried to navigate away before the page had loaded
            case "Page.javascriptDialogOpening":
                self._dismiss(params)
            case "Runtime.consoleAPICalled" if params["type"] == "error":
                self._console(" ".join(_shown(argument) for argument in params["args"][:10]))
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                self._console(details.get("exception", {}).get("description") or details.get("text", ""))
            case "Inspector.targetCrashed":
                self._crashed()
            case _:
                self._on_event(self._page, method, params)

    def _on_event(self, session: CdpSession | None, method: str, params: Params) -> None:
        """Handle the events that pages and frames have in common."""
        if session is None or self._is_closed:
            return
        match method:
            case "Fetch.requestPaused":
                self._paused(session, params)
            case "Fetch.authRequired":
                self._authenticate(session, params)
            case "Network.requestWillBeSent":
                self._requested(params)
            case "Network.responseReceived" if params["type"] == "Document":
                self._responded(params)
            case "Network.loadingFinished" | "Network.loadingFailed":
                self._ended(params["requestId"])
            case "Target.attachedToTarget":
                self._attached(params)
            case "Target.detachedFromTarget":
                self._browser.detach(params["sessionId"])
            case _:
                pass

    def _requested(self, params: Params) -> None:
        self._in_flight.setdefault(params["requestId"], "")
        url = hash(params["request"]["url"])
        self._repeats[url] += 1
        if params.get("type") in UNAWAITED or self._repeats[url] > MOST_REPEATS:
            return
        self._last_activity = self._clock.monotonic()
        self._awaited.add(params["requestId"])
        self._changed.set()

    def _attached(self, params: Params) -> None:
        """Apply the rules of the page to a frame of another site, or to a worker. Both have separate processes."""
        frame = self._browser.attach(params["sessionId"], lambda method, values: self._on_event(frame, method, values))
        self._frames.append(frame.id)
        frame.post("Network.enable", maxTotalBufferSize=0, maxResourceBufferSize=0, maxPostDataSize=0)
        self._intercept(frame)
        frame.post("Runtime.runIfWaitingForDebugger")

    def _dismiss(self, params: Params) -> None:
        assert self._page is not None
        self._dialogs += 1
        if self._dialogs <= MOST_DIALOGS:  # a page that keeps opening dialogs waits until its time is up
            self._page.post("Page.handleJavaScriptDialog", accept=params["type"] == "beforeunload")

    def _console(self, text: str) -> None:
        if len(self.page.console_errors) < MOST_ERRORS:
            self.page.console_errors.append(text[:LONGEST_ERROR])

    def _loaded(self) -> None:
        self._is_loaded = True
        self._changed.set()

    def _crashed(self) -> None:
        self._is_crashed = True
        self._changed.set()

    def _responded(self, params: Params) -> None:
        """Store the status of the page's own response, if the browser requested the page."""
        response = params["response"]
        if self._request.document is not None or params.get("frameId") != self._target_id:
            return
        headers = [(name, line) for name, value in response["headers"].items() for line in value.split("\n")]
        self.page.status = response["status"]
        self.page.headers = headers
        refusal = next((value for name, value in headers if name.lower() == REFUSAL), None)
        if refusal is not None:
            self.failure = Failure(refusal, "The request was refused.", retryable=False, url=self._request.url)

    # Requests of the page

    def _paused(self, session: CdpSession, params: Params) -> None:
        request_id, url, kind = params["requestId"], params["request"]["url"], params["resourceType"]
        fail = partial(session.post, "Fetch.failRequest", requestId=request_id)
        is_own = kind == "Document" and params.get("frameId") == self._target_id
        if is_own and self._request.document is not None:
            if not self._is_answered:
                self._is_answered = True
                session.post("Fetch.fulfillRequest", requestId=request_id, **_response(self._request.document))
                return
            if params["request"]["method"] == "GET" and len(self.page.navigations) < MOST_NAVIGATIONS:
                self.page.navigations.append(url)
            fail(errorReason="Aborted")  # the page does not navigate
            return
        counts = self.page.counts
        counts.requests += not is_own
        if kind in self._blocked:
            counts.blocked += 1
            fail(errorReason="BlockedByClient")
        elif counts.requests > MOST_REQUESTS or not url.startswith(("http://", "https://")):
            counts.refused += 1
            fail(errorReason="BlockedByClient")
        elif self._robots is None:
            self._go_on(session, params)
        elif (rules := self._robots.known(origin(Url(url)))) is not None:
            self._judged(session, params, is_own, allows(rules, url))
        else:
            task = asyncio.create_task(self._judge(session, params, self._robots, is_own))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _judge(self, session: CdpSession, params: Params, robots: RobotsRules, is_own: bool) -> None:
        url = params["request"]["url"]
        try:
            rules = await robots.rules_of(origin(Url(url)))
        except ShoalError:
            # The store is not available: the request is refused, and the page continues without a response.
            rules = None
        self._judged(session, params, is_own, allows(rules, url))

    def _judged(self, session: CdpSession, params: Params, is_own: bool, is_allowed: bool) -> None:
        if is_allowed:
            self._go_on(session, params)
            return
        if is_own and self.page.status is None:
            url = params["request"]["url"]
            message = f"The robots.txt of {origin(Url(url))} forbids {url}."
            self.failure = Failure("robots_denied", message, retryable=False, url=url)
        self.page.counts.refused += 1
        session.post("Fetch.failRequest", requestId=params["requestId"], errorReason="BlockedByClient")

    def _go_on(self, session: CdpSession, params: Params) -> None:
        """Continue a request as soon as its origin has room for it."""
        url, network_id = params["request"]["url"], params.get("networkId", "")
        place = origin(Url(url))
        more: Params = {}
        if self._request.headers and place == self._origin:
            headers = params["request"]["headers"] | self._request.headers
            more["headers"] = [{"name": name, "value": value} for name, value in headers.items()]
        self._release(network_id)  # after a redirect, the request no longer counts for the previous origin
        if network_id:
            self._in_flight.setdefault(network_id, "")  # this event may come before the event of the request itself

        def go() -> bool:
            if network_id and network_id not in self._in_flight:  # the request ended while it waited
                return False
            session.post("Fetch.continueRequest", requestId=params["requestId"], **more)
            if not network_id:  # the end of this request will not be noticed
                return False
            self._in_flight[network_id] = place
            self._held.add(network_id)
            return True

        self._connections.start(place, WaitingRequest(self, self._request.connections, go))

    def _ended(self, network_id: str) -> None:
        self._release(network_id)
        self._in_flight.pop(network_id, None)
        if network_id in self._awaited:
            self._awaited.discard(network_id)
            self._last_activity = self._clock.monotonic()
            if not self._awaited:
                self._changed.set()

    def _release(self, network_id: str) -> None:
        if network_id in self._held:
            self._held.discard(network_id)
            self._connections.end(self._in_flight[network_id])

    def _authenticate(self, session: CdpSession, params: Params) -> None:
        """Send credentials to our proxy; other servers get no credentials."""
        answer: Params = {"response": "CancelAuth"}
        if params["authChallenge"].get("source") == "Proxy" and self._proxy is not None:
            answer = {
                "response": "ProvideCredentials",
                "username": self._proxy.username,
                "password": self._proxy.password,
            }
        session.post("Fetch.continueWithAuth", requestId=params["requestId"], authChallengeResponse=answer)

    def _close(self) -> None:
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        self._connections.drop(self)
        for network_id in list(self._held):
            self._release(network_id)
        for session_id in self._frames:
            self._browser.detach(session_id)
        self._browser.close_target(self._target_id)


def _response(document: Document) -> Params:
    headers = [{"name": name, "value": value} for name, value in document.headers if name.lower() not in NO_LENGTH]
    body = base64.b64encode(document.body).decode()
    return {"responseCode": document.status, "responseHeaders": headers, "body": body}


def _cookie(url: str, cookie: Any) -> Params:
    place = {"url": url} if cookie.domain is None else {"domain": cookie.domain}
    return {"name": cookie.name, "value": cookie.value, "path": cookie.path, **place}


def _quiet(told: object) -> tuple[float, float | None]:
    """Return the page's report about its changes and timers. The page's scripts can falsify the report, so an invalid
    report counts as the report of a page that does not change."""
    match told:
        case [int() | float() as unchanged, int() | float() | None as due]:
            return unchanged, due
        case _:
            return inf, None


def _shown(argument: Params) -> str:
    return str(argument.get("value", argument.get("description", argument.get("type", ""))))


HTML: Final = """(most) => {
  const type = document.doctype;
  const head = type ? `<!DOCTYPE ${type.name}>` : "";
  const html = head + (document.documentElement ? document.documentElement.outerHTML : "");
  return {url: document.URL, html: html.length > most ? null : html};
}"""

# This script runs before every script of the page. `window.__shoal` returns for how many seconds the document has not
# changed, and in how many seconds the next timer is due, because timers of scripts cannot be seen from outside. If a
# timer's callback sets a timer, whose callback sets a third timer, the third timer is ignored: it belongs to a clock,
# an animation or a poll. Two frames are drawn first, because a page learns that elements have come into view only when
# a frame is drawn.
WATCH: Final = """(() => {
  if (window !== window.top) return;
  const timeout = window.setTimeout, frame = window.requestAnimationFrame, clock = performance.now.bind(performance);
  const timers = new Map();
  let changed = clock(), depth = 0;
  const watched = (name) => {
    const native = window[name];
    window[name] = function (callback, delay, ...values) {
      const wait = Math.max(0, Number(delay) || 0);
      if (typeof callback !== "function" || depth > 1 || wait > LONGEST) return native(callback, delay, ...values);
      const inner = depth + 1;
      const id = native(function (...given) {
        timers.delete(id);
        const outer = depth;
        depth = inner;
        try { return callback.apply(this, given); } finally { depth = outer; }
      }, delay, ...values);
      timers.set(id, clock() + wait);
      return id;
    };
  };
  const forgotten = (name) => {
    const native = window[name];
    window[name] = function (id) { timers.delete(id); return native(id); };
  };
  ["setTimeout", "setInterval"].forEach(watched);
  ["clearTimeout", "clearInterval"].forEach(forgotten);
  new MutationObserver(() => { changed = clock(); })
    .observe(document, {subtree: true, childList: true, characterData: true});
  const drawn = () => new Promise((done) => {
    timeout(done, 250);
    frame(() => frame(done));
  });
  Object.defineProperty(window, "__shoal", {value: async () => {
    await drawn();
    const now = clock();
    let due = null;
    for (const at of timers.values()) if (due === null || at < due) due = at;
    return [(now - changed) / 1000, due === null ? null : Math.max(0, due - now) / 1000];
  }});
})()""".replace("LONGEST", f"{1000 * TIMER_SECONDS:g}")

QUIET: Final = "() => window.__shoal ? window.__shoal() : null"

WAIT_FOR: Final = """(selector) => new Promise((done) => {
  const look = () => document.querySelector(selector) !== null;
  if (look()) return done(true);
  const watch = new MutationObserver(() => { if (look()) { watch.disconnect(); done(true); } });
  watch.observe(document, {subtree: true, childList: true, attributes: true});
})"""

SCROLL: Final = """() => {
  const page = document.scrollingElement || document.documentElement;
  const grew = page.scrollHeight !== window.__shoalHeight;
  window.__shoalHeight = page.scrollHeight;
  if (grew) window.scrollTo(0, page.scrollHeight);
  return grew;
}"""

CLICK: Final = """(selector) => {
  const element = document.querySelector(selector);
  if (!element || element.disabled || element.getClientRects().length === 0) return false;
  element.scrollIntoView();
  element.click();
  return true;
}"""
