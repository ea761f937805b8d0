"""The commit that `shoal audit --commit` names: as FORGE:OWNER/NAME@SHA, or `ci` for that of the running CI job."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from shoal.base.errors import InvalidInput
from shoal.base.forge_commit import CONTEXT, ForgeCommit

FLAG: Final = "--commit"
_WRITTEN: Final = re.compile(r"([a-z]+):([^@\s]+)@([0-9A-Fa-f]+)")
_EXAMPLE: Final = "write it as github:owner/name@SHA, or use `ci` within a CI job"


@dataclass(frozen=True, slots=True)
class CiCommit:
    """A commit, and the settings that the CI job has for its forge."""

    commit: ForgeCommit
    settings: Mapping[str, str] = field(default_factory=dict)


def read_commit(text: str, context: str | None, env: Mapping[str, str]) -> CiCommit:
    """Return the commit that the flags name. `context`: the name of the status."""
    if text == "ci":
        found = _from_ci(env, context or CONTEXT)
        if found is None:
            raise InvalidInput(FLAG, "is `ci`, but this is not a job of GitHub, GitLab, Gitea or Forgejo", _EXAMPLE)
        return found
    match = _WRITTEN.fullmatch(text)
    if match is None:
        raise InvalidInput(FLAG, f"{text!r} does not name a commit", _EXAMPLE)
    values = {"forge": match[1], "repo": match[2], "sha": match[3].lower(), "context": context or CONTEXT}
    return CiCommit(_commit(values))


def _commit(values: Mapping[str, Any]) -> ForgeCommit:
    names = {"context": "--commit-context"}
    return ForgeCommit.read(values, called=lambda name: names.get(name, f"{FLAG} ({name})"))


def _from_ci(env: Mapping[str, str], context: str) -> CiCommit | None:
    """Read the variables that CI systems document. Jobs of Gitea and Forgejo also set the variables of GitHub."""
    if env.get("GITLAB_CI") == "true":
        values = {
            "forge": "gitlab",
            "repo": env.get("CI_PROJECT_PATH", ""),
            "sha": env.get("CI_MERGE_REQUEST_SOURCE_BRANCH_SHA") or env.get("CI_COMMIT_SHA", ""),
            "context": context,
            "url": env.get("CI_JOB_URL"),
        }
        return CiCommit(_commit(values), _given(env, SHOAL_GITLAB_API="CI_API_V4_URL"))
    if env.get("GITHUB_ACTIONS") != "true" and env.get("GITEA_ACTIONS") != "true":
        return None
    forge = "forgejo" if env.get("FORGEJO_ACTIONS") == "true" else "gitea"
    forge = forge if "true" in (env.get("GITEA_ACTIONS"), env.get("FORGEJO_ACTIONS")) else "github"
    server, repo, run = (env.get(name, "") for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID"))
    values = {
        "forge": forge,
        "repo": repo,
        "sha": _head_of_pull_request(env) or env.get("GITHUB_SHA", ""),
        "context": context,
        "url": f"{server}/{repo}/actions/runs/{run}" if server and run else None,
    }
    prefix = "SHOAL_GITHUB" if forge == "github" else "SHOAL_GITEA"
    settings = _given(env, **{f"{prefix}_API": "GITHUB_API_URL", f"{prefix}_TOKEN": "GITHUB_TOKEN"})
    return CiCommit(_commit(values), settings)


def _given(env: Mapping[str, str], **names: str) -> dict[str, str]:
    """Return settings from variables of the CI job; settings that are set explicitly take precedence."""
    return {name: env[other] for name, other in names.items() if env.get(other) and not env.get(name)}


def _head_of_pull_request(env: Mapping[str, str]) -> str | None:
    """Return the last commit of a pull request: `GITHUB_SHA` is a merge commit that nobody looks at."""
    try:
        event = json.loads(Path(env["GITHUB_EVENT_PATH"]).read_text("utf-8"))
        sha = event["pull_request"]["head"]["sha"]
    except (KeyError, OSError, ValueError, TypeError):
        return None
    return sha if isinstance(sha, str) else None
