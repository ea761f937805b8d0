"""Publishes commit statuses to forges such as GitHub and GitLab."""

import asyncio
import json
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from html import escape
from typing import Any, Final
from urllib.parse import quote

import orjson

from shoal import __version__
from shoal.audit.analyses import KIND
from shoal.audit.analysis import CommitState, CommitStatus
from shoal.audit.store import CommitStatusStore
from shoal.base.clock import Clock
from shoal.base.database import Database
from shoal.base.service import PassResult
from shoal.base.settings import ForgeSettings
from shoal.base.signals import Signal, Signals
from shoal.base.text import HIDDEN, shorten
from shoal.base.url import UrlRefusal, canonical
from shoal.egress import Egress, Endpoint, Limits, Request, Response, endpoint
from shoal.egress.exchange import asked_wait, parse_retry_after
from shoal.events.webhook import JITTER, WAITS

GITLAB_STATES: Final = {
    CommitState.PENDING: "running",
    CommitState.SUCCESS: "success",
    CommitState.FAILURE: "failed",
    CommitState.ERROR: "failed",  # GitLab has no such state; the description says that the gate is inconclusive
}
ALREADY_SET: Final = b"Cannot transition status"
"""GitLab refuses a request to set the state that the commit already has. Such a request is sent if the response to an
earlier, successful request was lost."""


@dataclass(frozen=True, slots=True)
class Forge:
    """A forge from the settings. `api`: the base URL of its API, empty if not set. `prefix`: the prefix of its setting
    names."""

    kind: str
    api: str
    token: str
    prefix: str

    @property
    def missing(self) -> str | None:
        """The name of a required setting that is missing; None if all are set."""
        if not self.api:
            return f"{self.prefix}_API"
        return None if self.token else f"{self.prefix}_TOKEN"


def forges_of(settings: ForgeSettings) -> dict[str, Forge]:
    """Return the forges that the settings define, by the names that commits use for them."""
    gitea = Forge("gitea", settings.gitea_api, settings.gitea_token, "SHOAL_GITEA")
    return {
        "github": Forge("github", settings.github_api, settings.github_token, "SHOAL_GITHUB"),
        "gitlab": Forge("gitlab", settings.gitlab_api, settings.gitlab_token, "SHOAL_GITLAB"),
        "gitea": gitea,
        "forgejo": gitea,
    }


def endpoints_of(forges: Iterable[Forge]) -> frozenset[Endpoint]:
    """Return the hosts and ports of forges. The operator named them, so their addresses may be private."""
    urls = [canonical(f"{forge.api}/") for forge in forges if forge.api]
    return frozenset(endpoint(url) for url in urls if not isinstance(url, UrlRefusal))


def status_request(forge: Forge, status: CommitStatus, link: str | None, limits: Limits) -> Request:
    """Return the request that publishes a status."""
    commit = status.commit
    values: dict[str, str | None]
    if forge.kind == "gitlab":
        path = f"/projects/{quote(commit.repo, safe='')}/statuses/{commit.sha}"
        values = {"state": GITLAB_STATES[status.state], "name": commit.context}
        login: Mapping[str, str] = {"PRIVATE-TOKEN": forge.token}
    else:
        path = f"/repos/{quote(commit.repo)}/statuses/{commit.sha}"
        values = {"state": status.state.value, "context": commit.context}
        login = {"Authorization": f"token {forge.token}"}
        if forge.kind == "github":
            login = {"Authorization": f"Bearer {forge.token}", "X-GitHub-Api-Version": "2022-11-28"}
    values |= {"description": status.description} | ({"target_url": link} if link else {})
    accept = "application/vnd.github+json" if forge.kind == "github" else "application/json"
    headers = {"Content-Type": "application/json", "Accept": accept, "User-Agent": f"Shoal/{__version__}", **login}
    body = orjson.dumps(values)
    return Request(forge.api.rstrip("/") + path, "POST", tuple(headers.items()), body, limits)


def is_published(forge: Forge, status: int, body: bytes) -> bool:
    """Return whether the forge shows the status, according to its response."""
    return 200 <= status < 300 or (forge.kind == "gitlab" and status == 400 and ALREADY_SET in body)


AT_ONCE: Final = 16
RESPONSE_TIMEOUT: Final = timedelta(seconds=20)
TAKEN_FOR: Final = 3 * RESPONSE_TIMEOUT
LONGEST_HOLD: Final = timedelta(hours=24)
LIMITS: Final = Limits(
    connect_timeout=timedelta(seconds=10), total_timeout=RESPONSE_TIMEOUT, max_body_bytes=64_000, cut_body=True
)
QUICK_ATTEMPTS: Final = 3  # attempts in a process that ends with its analysis


class CommitStatusPublished(Signal, frozen=True, kw_only=True):
    """A forge shows a commit status."""

    kind: str = KIND
    run_id: str
    forge: str
    repo: str
    sha: str
    state: str
    attempt: int | None
    max_attempts: int | None


class CommitStatusFailed(Signal, frozen=True, kw_only=True):
    """A commit status could not be published. `again_in_seconds`: None if it was the last attempt."""

    kind: str = KIND
    run_id: str
    forge: str
    repo: str
    sha: str
    state: str
    error: str
    again_in_seconds: float | None
    attempt: int | None
    max_attempts: int | None


class CommitStatusPublisher:
    """Publishes due statuses. Several publishers may run at the same time: each leaves alone the statuses that others
    have taken."""

    name = "commit-status-publisher"

    def __init__(
        self,
        database: Database,
        forges: Mapping[str, Forge],
        egress: Callable[[], Egress],
        clock: Clock,
        signals: Signals,
        public_url: str = "",
    ) -> None:
        self._database = database
        self._store = CommitStatusStore()
        self._forges = forges
        self._new_egress = egress
        self._egress: Egress | None = None
        self._clock = clock
        self._signals = signals
        self._public_url = public_url.rstrip("/")

    async def run_once(self) -> PassResult:
        """Publish the statuses that are due."""
        taken = await self._database.run(lambda tx: self._store.take(tx, AT_ONCE, TAKEN_FOR))
        await asyncio.gather(*(self._publish(status) for status in taken))
        return PassResult(f"{len(taken)} commit statuses sent" if taken else "")

    async def finish(self, analysis_id: str) -> str | None:
        """Publish the status of one analysis now, in a few attempts. If all fail, return why the last one failed; the
        status then stays due for a controller's publisher."""
        error = None
        for attempt in range(QUICK_ATTEMPTS):
            if attempt:
                await self._clock.sleep(attempt)
            status = await self._database.run(lambda tx: self._store.take_one(tx, analysis_id, TAKEN_FOR))
            if status is None:
                return error
            error = await self._publish(status)
        return error

    async def close(self) -> None:
        egress, self._egress = self._egress, None
        if egress is not None:
            egress.close()

    async def _publish(self, status: CommitStatus) -> str | None:
        error, hold = await self._send(status)
        commit = status.commit
        about: dict[str, Any] = {
            "run_id": status.analysis_id,
            "forge": commit.forge,
            "repo": commit.repo,
            "sha": commit.sha,
            "state": status.state.value,
            "attempt": status.attempt,
            "max_attempts": status.max_attempts,
        }
        if error is None:
            await self._database.run(lambda tx: self._store.published(tx, status))
            self._signals.emit(CommitStatusPublished(**about))
            return None
        again = None
        if status.attempts < len(WAITS):
            again = max(WAITS[status.attempts] * (1 + JITTER * random.random()), hold or timedelta(0))
        await self._database.run(lambda tx: self._store.failed(tx, status, error, again))
        seconds = None if again is None else round(again.total_seconds(), 1)
        self._signals.emit(CommitStatusFailed(error=error, again_in_seconds=seconds, **about))
        return error

    async def _send(self, status: CommitStatus) -> tuple[str | None, timedelta | None]:
        """Return why a status was not published, and how long the forge asks to wait."""
        forge = self._forges[status.commit.forge]
        if forge.missing is not None:
            return f"{forge.missing} is not set", None
        link = status.commit.url
        if link is None and self._public_url:
            link = f"{self._public_url}/api/v1/analyses/{status.analysis_id}/report"
        outcome = await self._open_egress().fetch(status_request(forge, status, link, LIMITS))
        if not isinstance(outcome, Response):
            return f"{outcome.code}: {outcome.message}", None
        if is_published(forge, outcome.status, outcome.raw):
            return None, None
        wait = parse_retry_after(asked_wait(outcome.headers.get), self._clock.now(), LONGEST_HOLD)
        said = shorten(without_token(outcome.raw.decode("utf-8", "replace"), forge.token), 300)
        return f"the forge answered {outcome.status}: {said}", wait

    def _open_egress(self) -> Egress:
        if self._egress is None:
            self._egress = self._new_egress()
        return self._egress


def without_token(text: str, token: str) -> str:
    """Hide a token in a response, including its JSON, HTML and URL encodings. Call this before the text is shortened:
    half a token would not be recognized."""
    as_json = json.dumps(token)[1:-1]
    for written in (token, as_json, as_json.replace("/", "\\/"), escape(token), quote(token, safe="")):
        text = text.replace(written, HIDDEN)
    return text
