"""A commit on a forge (GitHub, GitLab, Gitea or Forgejo); the status of the commit shows the verdict about a site."""

import re
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from shoal.base.request_form import Form, describe, matching
from shoal.base.url import UrlRefusal, canonical

CONTEXT = "shoal/audit"
ForgeName = Literal["github", "gitlab", "gitea", "forgejo"]
Repository = Annotated[
    str, matching(r"^[A-Za-z0-9_.-]{1,100}(/[A-Za-z0-9_.-]{1,100}){1,10}\Z", "a repository such as owner/name")
]
Sha = Annotated[str, matching(r"^[0-9a-f]{40}([0-9a-f]{24})?\Z", "a full commit hash of 40 or 64 hexadecimal digits")]
Context = Annotated[str, matching(r"^[ -~]{1,100}\Z", "1 to 100 ASCII characters")]
Link = Annotated[str, Meta(min_length=1, max_length=2083)]
_DOTS = re.compile(r"(^|/)\.{1,2}(/|\Z)")


def check_repository(name: str) -> str:
    if _DOTS.search(name):
        raise ValueError(f"{name!r} has a part that is only dots; write it as owner/name")
    return name


def check_link(text: str | None) -> str | None:
    url = None if text is None else canonical(text)
    if isinstance(url, UrlRefusal):
        raise ValueError(f"{url.problem}; use an http or https URL")
    return text


class ForgeCommit(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A commit whose status shows the verdict."""

    forge: Annotated[ForgeName, describe("The forge; its address and token are settings.")]
    repo: Annotated[Repository, describe("The repository, as owner/name.")]
    sha: Annotated[Sha, describe("The full hash of the commit.")]
    context: Annotated[Context, describe("Name of the status; one commit may have several.")] = CONTEXT
    url: Annotated[Link | None, describe("URL to which the status links. Default: the report on this server.")] = None

    checks: ClassVar = {"repo": check_repository, "url": check_link}

    def __post_init__(self) -> None:
        """Check the fields in the constructor, because the `checks` of an outer form do not cover a nested form."""
        check_repository(self.repo)
        check_link(self.url)
