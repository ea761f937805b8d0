"""`shoal jobs add` and related commands, directly on a store."""

import json
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from shoal.cli.main import main

pytestmark = pytest.mark.usefixtures("default_store")


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_urls_of_the_line_and_of_a_file_are_one_group(capsys: pytest.CaptureFixture[str]) -> None:
    Path("urls.txt").write_text("# shops\nhttp://example.org/a\n\n http://example.org/b \n")
    Path("rules.toml").write_text('[fields.name]\ncss = "h1"\nrequired = true\n')
    words = ["--file", "urls.txt", "--rules", "rules.toml", "--header", "Accept-Language: de", "--label", "team=a"]
    group = told(capsys, "jobs", "add", "http://example.org/c", *words, "--group", "monday", "--retries", "3")
    assert (group["id"], group["total"], group["labels"]) == ("monday", 3, {"team": "a"})
    assert group["rule_set"] == {"fields": {"name": {"css": "h1", "required": True}}}
    assert main(["jobs", "groups"]) == 0
    assert "monday" in capsys.readouterr().out


def test_the_id_is_all_that_stdout_gets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "add", "http://example.org/a", "--group", "monday"]) == 0
    said = capsys.readouterr()
    assert said.out == "monday\n"
    assert said.err == "Created 1 job in monday.\n"


def test_a_wait_that_takes_too_long_is_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["jobs", "add", "http://example.org/a", "--group", "monday", "--wait", "--wait-timeout", "1ms"]
    assert main(words) == 6
    assert "monday did not end within 0.001 s" in capsys.readouterr().err


def test_urls_may_come_by_a_pipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(b"http://example.org/a\nhttp://example.org/b\n")))
    assert told(capsys, "jobs", "add", "--file", "-")["total"] == 2


def test_a_bad_url_of_a_file_is_reported_by_its_line_and_nothing_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    Path("urls.txt").write_text("http://example.org/a\n# no\nnothing\n")
    assert main(["jobs", "add", "--file", "urls.txt"]) == 2
    said = capsys.readouterr().err
    assert "shoal: line 3 of urls.txt 'nothing' is not an absolute http or https URL" in said
    assert "urls[" not in said
    assert told(capsys, "jobs", "groups")["items"] == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "No URL given"),
        (["http://example.org/", "--label", "x"], "write it as name=value"),
        (["http://example.org/", "--header", "x"], "write it as NAME: VALUE"),
        (["http://example.org/", "--priority", "200"], "shoal: --priority cannot be '200'"),
        (["http://example.org/", "ftp://a/", "nothing"], "shoal: URL 'ftp://a/' has a scheme other than http"),
        (["http://example.org/", "ftp://a/", "nothing"], "; nothing cannot be fetched either."),
        (["--file", "absent.txt"], "cannot be read"),
        (["http://127.0.0.1/"], "SHOAL_ALLOW_NETWORKS"),
        (["http://127.0.0.1/"], "shoal: http://127.0.0.1/ has an address or port that is not allowed"),
    ],
)
def test_a_bad_group_is_refused(capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    assert main(["jobs", "add", *words]) == 2
    assert says in capsys.readouterr().err


def test_a_group_without_results_says_that_they_may_come(capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "jobs", "add", "http://example.org/a", "--group", "monday")
    assert main(["jobs", "results", "monday"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert "run the command again" in said.err
    assert told(capsys, "jobs", "cancel-group", "monday")["jobs"] == {"cancelled": 1}
    assert told(capsys, "jobs", "results", "monday") == {"items": [], "next": None}


def test_an_unknown_group_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "jobs", "add", "http://example.org/a")
    assert main(["jobs", "results", "grp_none"]) == 5
    assert "grp_none" in capsys.readouterr().err
