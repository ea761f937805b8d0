"""The commit that `shoal audit --commit` names, also from the variables of CI jobs."""

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.base.errors import InvalidInput
from shoal.base.forge_commit import ForgeCommit
from shoal.cli.audit import read_commit

SHA, HEAD = "a" * 40, "b" * 40
GITHUB = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_REPOSITORY": "acme/shop",
    "GITHUB_SHA": SHA,
    "GITHUB_SERVER_URL": "https://forge.example",
    "GITHUB_API_URL": "https://forge.example/api/v1",
    "GITHUB_RUN_ID": "7",
    "GITHUB_TOKEN": "job-token",
}
GITLAB = {
    "GITLAB_CI": "true",
    "CI_PROJECT_PATH": "group/sub/shop",
    "CI_COMMIT_SHA": SHA,
    "CI_JOB_URL": "https://gitlab.example/group/sub/shop/-/jobs/9",
    "CI_API_V4_URL": "https://gitlab.example/api/v4",
}


def test_a_commit_is_written_in_one_word() -> None:
    found = read_commit(f"gitea:acme/shop@{SHA.upper()}", "site", {})
    assert found.commit == ForgeCommit(forge="gitea", repo="acme/shop", sha=SHA, context="site")
    assert found.settings == {}


@pytest.mark.parametrize(
    ("marks", "forge", "prefix"),
    [
        ({}, "github", "SHOAL_GITHUB"),
        ({"GITEA_ACTIONS": "true"}, "gitea", "SHOAL_GITEA"),
        ({"GITEA_ACTIONS": "true", "FORGEJO_ACTIONS": "true"}, "forgejo", "SHOAL_GITEA"),
    ],
)
def test_the_commit_of_an_actions_job(marks: dict[str, str], forge: str, prefix: str) -> None:
    found = read_commit("ci", None, GITHUB | marks)
    run = "https://forge.example/acme/shop/actions/runs/7"
    assert found.commit == ForgeCommit(forge=forge, repo="acme/shop", sha=SHA, url=run)  # type: ignore[arg-type]
    assert found.settings == {f"{prefix}_API": "https://forge.example/api/v1", f"{prefix}_TOKEN": "job-token"}


def test_the_commit_of_a_pull_request_is_its_head_and_not_the_merge(tmp_path: Path) -> None:
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"pull_request": {"head": {"sha": HEAD}}}))
    assert read_commit("ci", None, GITHUB | {"GITHUB_EVENT_PATH": str(event)}).commit.sha == HEAD
    event.write_text("no json")
    assert read_commit("ci", None, GITHUB | {"GITHUB_EVENT_PATH": str(event)}).commit.sha == SHA


def test_the_commit_of_a_gitlab_job() -> None:
    found = read_commit("ci", None, GITLAB)
    assert (found.commit.forge, found.commit.repo, found.commit.sha) == ("gitlab", "group/sub/shop", SHA)
    assert found.commit.url == GITLAB["CI_JOB_URL"]
    assert found.settings == {"SHOAL_GITLAB_API": "https://gitlab.example/api/v4"}
    merged = GITLAB | {"CI_MERGE_REQUEST_SOURCE_BRANCH_SHA": HEAD}
    assert read_commit("ci", None, merged).commit.sha == HEAD


def test_a_setting_wins_over_the_variables_of_the_job() -> None:
    env = GITHUB | {"SHOAL_GITHUB_TOKEN": "own", "SHOAL_GITHUB_API": "https://api.example"}
    assert read_commit("ci", None, env).settings == {}


@pytest.mark.parametrize(
    ("text", "env", "problem"),
    [
        ("ci", {}, "not a job of GitHub"),
        ("main", {}, "does not name a commit"),
        ("bitbucket:a/b@" + SHA, {}, "forge"),
        ("github:a@" + SHA, {}, "repo"),
        ("github:a/b@abc", {}, "sha"),
        ("ci", GITHUB | {"GITHUB_SHA": ""}, "sha"),
    ],
)
def test_an_invalid_commit_is_refused(text: str, env: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem) as refused:
        read_commit(text, None, env)
    assert refused.value.message.startswith("--commit")
