"""The forges of the settings, and the requests that set a commit status, as each forge documents them. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import orjson

from shoal import __version__
from shoal.audit.commit_status.status import CommitState, CommitStatus
from shoal.base.settings import ForgeSettings
from shoal.base.url import UrlRefusal, canonical
from shoal.egress import Endpoint, Limits, Request, endpoint

GITLAB_STATES: Final = {
    CommitState.PENDING: "running",
    CommitState.SUCCESS: "success",
    CommitState.FAILURE: "failed",
    CommitState.ERROR: "failed",  # GitLab has no such state; the description says that the gate is inconclusive
}
ALREADY_SET: Final = b"Cannot transition status"
"""GitLab refuses to set a state twice, as happens when we did not learn that the first request had succeeded."""


@dataclass(frozen=True, slots=True)
class Forge:
    """A forge of the settings. `api`: base URL of its API, empty if it is not set; `prefix`: of the settings' names."""

    kind: str
    api: str
    token: str
    prefix: str

    @property
    def missing(self) -> str | None:
        """The setting without which nothing can be published; None if all are there."""
        if not self.api:
            return f"{self.prefix}_API"
        return None if self.token else f"{self.prefix}_TOKEN"


def forges_of(settings: ForgeSettings) -> dict[str, Forge]:
    """Return the forges of the settings, by the name that a commit gives them."""
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
    """Return whether a response says that the forge shows the status."""
    return 200 <= status < 300 or (forge.kind == "gitlab" and status == 400 and ALREADY_SET in body)
