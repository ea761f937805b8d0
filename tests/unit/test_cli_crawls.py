"""`shoal crawls`: listing, showing and moving crawls, straight on the store."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.app import opened
from shoal.base.database import Tx
from shoal.base.errors import BadConfig
from shoal.base.ids import CrawlId
from shoal.base.settings_loader import load
from shoal.base.url import Url
from shoal.cli.main import main
from shoal.crawl.crawl import CrawlConfig
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import NewUrl, key_of
from shoal.crawl.lifecycle.crawl_status import LEFT
from shoal.queue.job import local_lane


@pytest.fixture(autouse=True)
def _three_crawls(default_store: None) -> None:
    asyncio.run(_submit("one", "two", "three"))


async def _submit(*ids: str) -> None:
    async with opened(load().settings) as app:
        for crawl_id in ids:
            config = CrawlConfig(seeds=[f"https://{crawl_id}.test/", "https://other.test/"], sitemap="off")
            await app.crawls.submit(config, crawl_id=CrawlId(crawl_id))


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """Run a command with `--json` and return its output."""
    assert main(["crawls", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_newest_crawl_stands_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crawls", "ls"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["ID", "STATE", "PAGES", "RESPONSES", "ERRORS", "QUEUED", "CREATED", "SEED"]
    assert [row.split()[:6] for row in rows] == [
        [name, "queued", "0", "-", "0", "2"] for name in ("three", "two", "one")
    ]
    assert rows[0].endswith("https://three.test/ and 1 more")


def test_an_id_may_be_abbreviated(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "show", "last")["id"] == "three"
    assert told(capsys, "show", "tw")["id"] == "two"
    assert told(capsys, "pause", "o")["id"] == "one"
    assert main(["crawls", "show", "t"]) == 2
    assert '"t" is the beginning of three and two; write more of the id' in capsys.readouterr().err
    assert main(["crawls", "show", "x"]) == 5
    assert 'crawl "x" does not exist' in capsys.readouterr().err
    assert main(["crawls", "start", "https://three.test/"]) == 2
    assert "start a new crawl with `shoal crawls add`" in capsys.readouterr().err
    asyncio.run(_submit("t", "last"))
    assert told(capsys, "show", "t")["id"] == "t"
    asyncio.run(_submit("newer"))
    assert told(capsys, "show", "last")["id"] == "last"


def test_a_crawl_to_compare_with_may_be_abbreviated(capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "stop", "last")
    added = told(capsys, "add", "https://three.test/", "--since", "last")
    assert added["config"]["recrawl_of"] == "three"
    assert main(["crawls", "add", "https://three.test/", "--since", "nothing"]) == 2
    assert capsys.readouterr().err.startswith(
        "shoal: --recrawl-of 'nothing' is not a crawl in this store; use a crawl that"
    )


@pytest.mark.parametrize(
    ("written", "meant"),
    [("--max-depth", "--depth"), ("--max-concurrency", "--concurrency"), ("--javascript", "--render")],
)
def test_a_flag_of_another_crawler_is_recognised(capsys: pytest.CaptureFixture[str], written: str, meant: str) -> None:
    assert main(["crawl", "https://one.test/", written, "1"]) == 2
    assert f"No such option '{written}' (did you mean '{meant}'?); see" in capsys.readouterr().err


@pytest.mark.parametrize("written", ["--port", "--host"])
def test_a_port_is_part_of_the_listening_address(capsys: pytest.CaptureFixture[str], written: str) -> None:
    assert main(["serve", written, "9000"]) == 2
    assert f"No such option '{written}' (did you mean '--listen'?); see" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("crawl", "http://one.test/", "--output", "/"),
            "--output '/' is a folder; name a file that ends in ",
        ),
        (("crawl", "http://one.test/", "--output", "new/"), "--output 'new/' is a folder; name a file "),
        (
            ("crawl", "http://one.test/", "--links", "/"),
            "--links '/' is a folder; name a file that ends in ",
        ),
        (
            ("crawl", "http://one.test/", "--fields", "titel", "--output", "a.csv"),
            "not a field; did you mean title?\n",
        ),
        (
            ("policies", "add", "http://one.test/", "--frequency", "1h", "--set", "crawl_config={depth: 2}"),
            "--set '{depth: 2}' for crawl_config is not JSON (",
        ),
        (("fetch", "http://one.test/", "--store", "foo://"), "--store has a value that is not a store URL; "),
    ],
)
def test_a_wrong_value_is_named_as_it_is(capsys: pytest.CaptureFixture[str], words: Sequence[str], says: str) -> None:
    assert main(list(words)) in (2, 4)
    assert says in capsys.readouterr().err


async def test_a_wrong_store_is_called_by_its_name_in_the_library() -> None:
    with pytest.raises(BadConfig, match=r"^store has a value that is not a store URL; "):
        await shoal.fetch("http://one.test/", store="foo://")
    with pytest.raises(BadConfig, match=r"^store has a value that is not a store URL; "):
        await anext(shoal.open("last", store="foo://"))


def test_the_frequency_of_a_policy_is_recognised_under_other_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policies", "add", "http://one.test/", "--every", "5m"]) == 2
    assert "No such option '--every' (did you mean '--frequency'?); see" in capsys.readouterr().err


def test_a_running_crawl_without_a_process_says_so_in_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(_abandon("left"))
    assert main(["crawls", "ls", "--limit", "1"]) == 0
    assert "left  running (its process is gone)" in capsys.readouterr().out


async def _abandon(crawl_id: str) -> None:
    """Store a crawl whose process has died: it is running, and nobody renews the lease of its job."""
    async with opened(
        load({"SHOAL_LEASE": "100ms", "SHOAL_LEASE_EXTEND": "30ms", "SHOAL_LEASE_SWEEP": "50ms"}).settings
    ) as app:
        config = CrawlConfig(seeds=["https://left.test/"], sitemap="off")
        await app.crawls.submit(config, crawl_id=CrawlId(crawl_id), named=["https://left.test/"], local=True)
        [lease] = await app.queue.lease("gone", ["crawl"], [local_lane(crawl_id)], 1)
        await app.database.run(lambda tx: app.crawls.started(tx, crawl_id, lease.fence.job_id))
        async with asyncio.timeout(60):
            while (await app.crawls.get(crawl_id)).crawl.state_reason != LEFT:
                await app.clock.sleep(0.05)


def test_a_list_goes_on_after_its_last_crawl(capsys: pytest.CaptureFixture[str]) -> None:
    first = told(capsys, "ls", "--limit", "2")
    assert [crawl["id"] for crawl in first["items"]] == ["three", "two"]
    assert first["next"] == "two"
    rest = told(capsys, "ls", "--limit", "2", "--cursor", first["next"])
    assert ([crawl["id"] for crawl in rest["items"]], rest["next"]) == (["one"], None)
    assert main(["crawls", "ls", "--limit", "2"]) == 0
    assert "shoal crawls ls --cursor two" in capsys.readouterr().err


def test_a_crawl_is_paused_resumed_and_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "pause", "one")["state"] == "paused"
    assert [crawl["id"] for crawl in told(capsys, "ls", "--state", "paused")["items"]] == ["one"]
    assert told(capsys, "resume", "one")["state"] == "queued"
    assert main(["crawls", "stop", "one"]) == 0
    assert capsys.readouterr().out == "one is stopped.\n"


def test_an_address_that_workers_may_not_fetch_is_refused_as_what_the_person_wrote(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["crawls", "add", "http://10.0.0.1/"]) == 2
    assert capsys.readouterr().err.startswith(
        "shoal: URL has an address or port that is not allowed (SSRF protection); "
    )


def test_a_seed_that_may_not_be_fetched_is_named_when_its_crawl_is_resumed_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_ALLOW_NETWORKS", "10.0.0.0/8")
    assert main(["crawls", "add", "http://10.0.0.1/", "--project", "inside"]) == 0
    crawl_id = capsys.readouterr().out.strip()
    monkeypatch.delenv("SHOAL_ALLOW_NETWORKS")
    assert main(["crawl", "--resume", crawl_id]) == 2
    assert "shoal: Seed http://10.0.0.1/ has an address or port that is not allowed" in capsys.readouterr().err


def test_advice_names_the_store_that_was_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/an other.db"
    for host in ("one", "two"):
        assert main(["crawls", "add", f"https://{host}.test/", "--store", store]) == 0
        assert f" --store 'sqlite:///{tmp_path}/an other.db'`" in capsys.readouterr().err
    assert main(["crawls", "ls", "--limit", "1", "--store", store]) == 0
    assert f" --store 'sqlite:///{tmp_path}/an other.db'`" in capsys.readouterr().err


def test_a_crawl_is_made_for_the_workers_with_the_options_of_a_crawl(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--max-pages", "7", "--max-time", "10m", "--workers", "2", "--priority", "60", "--label", "team=a"]
    made = told(capsys, "add", "https://four.test/", "https://five.test/", "--project", "shop", *words)
    assert (made["state"], made["seeds"]) == ("queued", ["https://four.test/", "https://five.test/"])
    assert (made["project"], made["labels"], made["priority"]) == ("shop", {"team": "a"}, 60)
    assert [made["config"][name] for name in ("max_pages", "max_seconds", "workers", "depth")] == [7, 600.0, 2, None]
    assert [crawl["id"] for crawl in told(capsys, "ls", "--project", "shop")["items"]] == [made["id"]]
    assert [crawl["id"] for crawl in told(capsys, "ls", "--label", "team=a")["items"]] == [made["id"]]
    assert told(capsys, "ls", "--label", "team=b")["items"] == []


def test_the_id_of_a_made_crawl_is_all_that_stdout_gets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crawls", "add", "https://four.test/", "--hold"]) == 0
    said = capsys.readouterr()
    crawl_id = said.out.strip()
    assert said.err == f"The crawl is pending; follow it with `shoal crawls watch {crawl_id}`.\n"
    assert told(capsys, "start", crawl_id)["state"] == "queued"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "No URL given"),
        (["four"], "four"),
        (["https://four.test/", "--workers", "0"], "--workers cannot be '0'"),
        (["https://four.test/", "--label", "team"], "--label 'team' is not a label; write it as name=value."),
        (["https://four.test/", "--hold", "--wait"], "--hold and --wait cannot be combined"),
        (["http://127.0.0.1/"], "SHOAL_ALLOW_NETWORKS"),
    ],
)
def test_a_crawl_that_cannot_be_made_is_refused_and_nothing_is_stored(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["crawls", "add", *words]) == 2
    assert said in capsys.readouterr().err
    assert len(told(capsys, "ls")["items"]) == 3


def test_a_crawl_is_shown_with_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crawls", "show", "two"]) == 0
    rows = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    shown = {name: value.strip() for name, value in rows.items()}
    assert (shown["Id"], shown["State"], shown["Seeds"]) == ("two", "queued", "https://two.test/, https://other.test/")
    assert (shown["Scope"], shown["Speed"]) == ("host", "normal")
    assert "Depth" not in shown
    assert told(capsys, "show", "two")["config"]["depth"] is None


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["show", "none"], 5, 'crawl "none" does not exist in '),
        (["rm", "none"], 5, "shoal.db; list them with `shoal crawls ls`."),
        (["ls", "--store", "sqlite:///typo.db"], 5, 'store "typo.db" does not exist'),
        (["ls", "--after", "none"], 5, 'crawl "none" does not exist'),
        (["resume", "one"], 7, "is queued"),
        (["ls", "--state", "dancing"], 2, "--state"),
        (["ls", "--limit", "0"], 2, "--limit"),
        (["puase", "one"], 2, 'the nearest one is "shoal crawls pause"'),
    ],
)
def test_a_command_that_cannot_be_run_has_its_exit_code(
    words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["crawls", *words]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert not Path("typo.db").exists()


def test_a_quarantined_pattern_is_shown_and_released(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = f"sqlite:///{tmp_path}/shoal.db"
    pattern = "http://example.org/cal?month="

    async def trapped() -> None:
        settings = load({"DATABASE_URL": store}, env={}).settings
        async with opened(settings) as app:
            crawl = await app.crawls.submit(CrawlConfig(seeds=["http://example.org/"]), crawl_id=CrawlId("mine"))
            url = Url(f"{pattern}1")
            new = NewUrl(*key_of(url, crawl.key_seed), url, 1, Fate.QUARANTINED)

            async def commit(tx: Tx) -> None:
                await app.stores.frontiers.sql.quarantine(tx, crawl.number, {pattern: url})
                await app.crawls.add_urls(tx, crawl, [new])

            await app.database.run(commit)

    asyncio.run(trapped())
    assert main(["crawls", "show", "mine", "--store", store]) == 0
    assert f"{pattern} (1 URL, such as {pattern}1)" in capsys.readouterr().out
    assert main(["crawls", "pause", "mine", "--store", store]) == 0
    capsys.readouterr()
    main(["crawls", "wait", "mine", "--json", "--store", store])
    assert f"`shoal crawls release mine PATTERN --store {store}`" in capsys.readouterr().out
    assert main(["crawls", "resume", "mine", "--store", store]) == 0
    capsys.readouterr()
    assert main(["crawls", "release", "mine", pattern, "--store", store]) == 0
    said = capsys.readouterr()
    assert "1 URL of" in said.out
    assert f"`shoal crawl --resume mine --store {store}`" in said.err
    assert main(["crawls", "release", "mine", pattern, "--store", store]) == 5


def test_a_crawl_is_changed_by_its_flags(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--max-pages", "7", "--max-time", "2m", "--exclude", "/a", "--exclude", "/b", "--priority", "80"]
    answer = told(capsys, "set", "one", *flags)
    config = answer["config"]
    assert (config["max_pages"], config["max_seconds"], config["exclude"]) == (7, 120.0, ["/a", "/b"])
    assert answer["priority"] == 80
    config = told(capsys, "set", "one", "--max-pages", "none", "--exclude", "none")["config"]
    assert (config["max_pages"], config["exclude"], config["max_seconds"]) == (None, [], 120.0)


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        ([], 2, "Nothing to change"),
        (["--max-pages", "0"], 2, "--max-pages cannot be '0'"),
        (["--exclude", "("], 2, "--exclude '(' is not a regular expression"),
        (["--max-time", "soon"], 2, "--max-time 'soon' is not a duration"),
        (["--priority", "101"], 2, "--priority cannot be '101'"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused(
    flags: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["crawls", "set", "one", *flags]) == code
    assert said in capsys.readouterr().err


def test_failed_urls_are_named_by_flags(capsys: pytest.CaptureFixture[str]) -> None:
    answer = told(capsys, "retry", "one", "--status", "5xx", "--error", "timeout", "--like", "/shop/")
    assert (answer["retried"], answer["state"]) == (0, "queued")
    assert main(["crawls", "retry", "one", "--all"]) == 0
    assert capsys.readouterr().out == "0 URLs of one will be retried; the crawl is queued.\n"


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        ([], 7, "is queued, so it cannot be retried"),
        (["--status", "2xx"], 2, "--status '2xx' is not the status of a failure"),
        (["--error", "oops"], 2, "--error 'oops' is not an error code of a page"),
        (["--like", "("], 2, "--like is not a regular expression"),
        (["--limit", "none"], 2, "--limit cannot be 'none'"),
    ],
)
def test_a_retry_that_cannot_be_made_is_refused(
    flags: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["crawls", "retry", "one", *flags]) == code
    assert said in capsys.readouterr().err
