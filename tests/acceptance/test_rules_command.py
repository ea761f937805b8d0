"""`shoal rules test`, and crawls with rule sets and hooks, as processes."""

import csv
import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.distribution import install
from tests.support.processes import Shoal
from tests.support.servers import free_port
from tests.support.site import Site

TITLE = '[fields.title]\ncss = "h1"\nrequired = true\n'
PRICE = '[fields.price]\ncss = ".price"\nrequired = true\n'


@pytest.mark.parametrize(
    ("rules", "path", "code", "words"),
    [
        (TITLE, "", 0, ""),
        (TITLE + PRICE, "", 1, "price is required and missing."),
        (TITLE, "nothing-here", 1, "The rule set does not apply to this page: check its status (404)"),
        ("[fields.a]\ncss = 'p['", "", 2, "rules.toml: fields.a.css is 'p[', which is not a CSS selector"),
    ],
)
def test_the_exit_code_says_whether_a_page_has_what_is_required(
    rules: str, path: str, code: int, words: str, tmp_path: Path, shoal: Shoal
) -> None:
    (tmp_path / "rules.toml").write_text(rules)
    with Site(pages=1) as site:
        ended, out, err = shoal("rules", "test", "rules.toml", f"{site.address}{path}", "--json")
    assert ended == code
    assert words in err
    if code == 0:
        told = json.loads(out)
        assert (told["status"], told["error"], told["data"]) == (200, None, {"title": "Page 0"})


def test_a_page_that_cannot_be_fetched_is_not_checked_against_the_rules(tmp_path: Path, shoal: Shoal) -> None:
    (tmp_path / "rules.json").write_text('{"fields": {"title": {"css": "h1"}}}')
    code, _, err = shoal("rules", "test", "rules.json", f"http://127.0.0.1:{free_port()}/", SHOAL_PAGE_ATTEMPTS="1")
    assert code == 3
    assert "the URL returned no page" in err


def test_a_page_that_robots_txt_forbids_is_reported_as_that(tmp_path: Path, shoal: Shoal) -> None:
    (tmp_path / "rules.toml").write_text(TITLE)
    with Site(pages=1) as site:
        site.robots = "User-agent: *\nDisallow: /\n"
        for words in (["rules", "test", "rules.toml"], ["crawl"]):
            code, _, err = shoal(*words, site.address)
            assert code == 3
            assert "robots.txt disallows it" in err
    assert shoal("rules", "test", "absent.toml", "http://127.0.0.1:1/")[0] == 2


@pytest.mark.exhaustive
def test_a_hook_of_an_installed_package_adds_to_the_data_in_every_walker(tmp_path: Path, shoal: Shoal) -> None:
    entry = "[shoal.hooks]\nshout = tiny:shout\n"
    code = "def shout(page):\n    return {'shouted': page.data['title'].upper()}\n"
    path = os.pathsep.join([str(install(tmp_path, code, entry)), os.environ.get("PYTHONPATH", "")])
    (tmp_path / "rules.toml").write_text(TITLE)
    with Site(pages=6) as site:
        words = ["crawl", site.address, "--speed", "max", "--processes", "2", "--rules", "rules.toml", "--output", "-"]
        ended, out, err = shoal(*words, "--hook", "shout", PYTHONPATH=path)
        unknown = shoal(*words, "--hook", "absent", PYTHONPATH=path)
    assert ended == 0, err
    records = [json.loads(line) for line in out.splitlines()]
    assert {record["data"]["shouted"] for record in records} == {f"PAGE {number}" for number in range(6)}
    assert unknown[0] == 2
    assert "'absent', which no installed package provides; installed are shout" in unknown[2]


def test_a_rule_set_is_carried_out_on_the_bodies_that_a_crawl_kept(tmp_path: Path, shoal: Shoal) -> None:
    store = ["--store", "sqlite:///here.db"]
    (tmp_path / "rules.toml").write_text(TITLE + PRICE)
    with Site(pages=4) as site:
        crawl = ["crawl", site.address, "--speed", "max", *store]
        assert shoal(*crawl, "--id", "kept", "--keep-bodies")[0] == 0
        assert shoal(*crawl, "--id", "bare")[0] == 0
    code, out, err = shoal("rules", "apply", "rules.toml", "kept", *store)
    assert code == 0, err
    lines = [json.loads(line) for line in out.splitlines()]
    assert {line["data"]["title"] for line in lines} == {f"Page {number}" for number in range(4)}
    assert {line["error"]["code"] for line in lines} == {"invalid_data"}
    assert "4 pages read, 0 skipped, 0 without a body." in err
    assert shoal("rules", "apply", "rules.toml", "kept", *store, "--output", "data.jsonl")[:2] == (0, "")
    assert (tmp_path / "data.jsonl").read_text() == out
    code, out, err = shoal("rules", "apply", "rules.toml", "bare", *store)
    assert (code, out) == (5, "")
    assert "run the crawl with --keep-bodies" in err
    for crawl_id in ("absent", "bare"):
        words = ["rules", "apply", "rules.toml", crawl_id, *store, "--output", "data.jsonl"]
        assert shoal(*words)[0] == 5
    assert (tmp_path / "data.jsonl").read_text().count("Page") == 4  # as it was
    assert shoal("rules", "apply", "rules.toml", "kept", *store, "--output", "/nowhere/x.jsonl")[0] == 4
    for name in ("data.md", "data.warc.gz", "links.csv"):
        code, _, err = shoal("rules", "apply", "rules.toml", "kept", *store, "--output", name)
        assert code == 2
        assert "--output is not a file of data" in err
        assert not (tmp_path / name).exists()
    words = ["-o", "data.csv", "-o", "data.parquet", "-o", "data.json"]
    assert shoal("rules", "apply", "rules.toml", "kept", *store, *words)[0] == 0
    with (tmp_path / "data.csv").open(newline="") as file:
        rows = list(csv.DictReader(file, strict=True))
    assert list(rows[0]) == ["url", "data", "error", "data.title", "data.price"]
    assert {row["data.title"] for row in rows} == {f"Page {number}" for number in range(4)}
    assert pq.read_table(tmp_path / "data.parquet")["data.title"].to_pylist() == [row["data.title"] for row in rows]
    assert [one["url"] for one in json.loads((tmp_path / "data.json").read_text())] == [row["url"] for row in rows]
    words = ["-o", "data.csv", "--fields", "status,data.title,h1"]
    assert shoal("rules", "apply", "rules.toml", "kept", *store, *words)[0] == 0
    assert (tmp_path / "data.csv").read_text().splitlines()[0] == '"status","data.title","h1"'
