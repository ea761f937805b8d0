"""Page jobs from their group to their results: with a real store, a real egress and a scripted site."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from shoal.app import App, opened
from shoal.base.errors import InvalidInput
from shoal.base.ids import JobId, new_id
from shoal.base.settings_loader import load
from shoal.base.signals import Signals
from shoal.hosts.store import HostStore
from shoal.hosts.throttle import HostUpdate
from shoal.page_jobs.executor import UNREADABLE, PageJobExecutor
from shoal.page_jobs.leasing import PutOff
from shoal.page_jobs.result import Result, ResultDelivery, Status
from shoal.page_jobs.spec import Group, GroupConfig, GroupState, PageSpec
from shoal.process.runners import page_job_executor
from shoal.queue.job import NewJob
from tests.packages.conftest import Answer, ScriptedSite, html, serving
from tests.support.plain_jobs import SinglePageJobs
from tests.support.refused_results import refuse_results

RULES = {"fields": {"name": {"css": "h1", "required": True}, "price": {"css": ".price", "type": "float"}}}
LOOPBACK = {"SHOAL_ALLOW_NETWORKS": "127.0.0.0/8"}


@asynccontextmanager
async def process(store_url: str, folder: Path, **env: str) -> AsyncIterator[App]:
    given = {"SHOAL_DATA_DIR": str(folder), "SHOAL_PAGE_SPEED": "max", "WORKER_BACKOFF_MS": "0", **LOOPBACK, **env}
    settings = load({"DATABASE_URL": store_url}, env=given).settings
    async with opened(settings, Signals()) as app:
        yield app


@pytest.fixture
async def app(store_url: str, tmp_path: Path) -> AsyncIterator[App]:
    async with process(store_url, tmp_path) as app:
        yield app


async def work_off(app: App, jobs: PageJobExecutor, group: Group, size: int = 10) -> list[ResultDelivery | PutOff]:
    """Work as a page child does until the group has ended; return all results."""
    finished: list[ResultDelivery | PutOff] = []
    everything: list[ResultDelivery | PutOff] = []
    pool = SinglePageJobs(jobs)
    while (await app.page_jobs.groups.get(group.id)).state is GroupState.OPEN:
        tasks = await jobs.settle(finished, "w1", size)
        finished = list(await asyncio.gather(*[pool.run(task) for task in tasks]))
        everything += finished
    return everything


async def fetch(app: App, *urls: str, **more: Any) -> dict[str, Result]:
    """Fetch the URLs as page jobs and return the result of each after its last attempt."""
    jobs = page_job_executor(app)
    try:
        group = await app.page_jobs.groups.make(GroupConfig.read({"urls": list(urls), **more}))
        await work_off(app, jobs, group)
        return {one.result.url: one.result for one in await app.page_jobs.groups.results(group.id, limit=1000)}
    finally:
        jobs.close()


async def test_a_page_gives_the_data_of_its_rule_set(app: App) -> None:
    page = '<title>T</title><h1>Anchor</h1><p class="price">3.50</p>'
    async with serving(ScriptedSite(lambda path: (200, {"Content-Type": "text/html"}, page))) as site:
        result = (await fetch(app, f"{site.url}/a", rule_set=RULES))[f"{site.url}/a"]
    assert (result.status, result.http_status, result.error) == ("success", 200, None)
    assert result.data == {"name": "Anchor", "price": 3.5}
    assert result.final_url == f"{site.url}/a"
    assert result.html_hash
    assert result.duration_seconds is not None


async def test_without_a_rule_set_a_page_says_what_it_is(app: App) -> None:
    async with serving(ScriptedSite(lambda path: html("Anchor"))) as site:
        [result] = (await fetch(app, f"{site.url}/a")).values()
    assert result.data["title"] == "Anchor"


async def test_a_page_without_a_required_field_has_invalid_data(app: App) -> None:
    async with serving(ScriptedSite(lambda path: (200, {"Content-Type": "text/html"}, "<p>none</p>"))) as site:
        [result] = (await fetch(app, f"{site.url}/a", rule_set=RULES)).values()
        assert (result.status, result.error_code) == ("fail", "invalid_data")
        assert site.times("/a") == 2, "it is tried as often as any job"


async def test_a_document_that_is_not_a_page_lacks_what_is_required(app: App) -> None:
    async with serving(ScriptedSite(lambda path: (200, {"Content-Type": "application/pdf"}, b"%PDF"))) as site:
        [result] = (await fetch(app, f"{site.url}/a", rule_set=RULES, max_retry=0)).values()
    assert result.error_code == "invalid_data"


@pytest.mark.parametrize(
    ("answer", "code", "tries"),
    [
        ((404, {}, ""), "http_status", 1),
        ((500, {}, ""), "http_status", 2),
        ((301, {"Location": "/a"}, ""), "redirect_loop", 1),
        ((200, {"Content-Encoding": "gzip", "Content-Type": "text/html"}, "no gzip"), "bad_encoding", 1),
    ],
)
async def test_a_failure_is_tried_again_only_if_that_may_help(app: App, answer: Answer, code: str, tries: int) -> None:
    async with serving(ScriptedSite(lambda path: answer)) as site:
        [result] = (await fetch(app, f"{site.url}/a")).values()
        assert (result.status, result.error_code) == ("fail", code)
        assert site.times("/a") == tries


async def test_a_page_that_answers_503_is_tried_again_when_it_asks_for_it_and_holds_nobody(app: App) -> None:
    def busy(path: str) -> Answer:
        is_first = path == "/busy" and site.times(path) == 1
        return (503, {"Retry-After": "1"}, "") if is_first else html(path)

    async with serving(ScriptedSite(busy)) as site:
        results = await fetch(app, f"{site.url}/busy", *(f"{site.url}/{number}" for number in range(8)))
    assert {result.status for result in results.values()} == {"success"}
    first, second = [at for path, at in zip(site.asked, site.moments, strict=True) if path == "/busy"]
    assert second - first >= 1.0
    assert all(at < second for path, at in zip(site.asked, site.moments, strict=True) if path != "/busy")
    assert (await app.database.read(lambda tx: tx.one("host_states", numbers=[1])))["held_until"] == 0  # type: ignore[index]


async def test_a_page_that_robots_txt_forbids_is_not_fetched(app: App) -> None:
    robots = (200, {"Content-Type": "text/plain"}, "User-agent: *\nDisallow: /private\n")
    async with serving(ScriptedSite(lambda path: html("x"), robots=robots)) as site:
        found = await fetch(app, f"{site.url}/private/a", f"{site.url}/b")
        assert found[f"{site.url}/private/a"].error_code == "robots_denied"
        assert found[f"{site.url}/b"].status == "success"
        assert site.times("/private/a") == 0
        assert site.times("/robots.txt") == 1


async def test_a_page_goes_through_the_proxy_of_its_label_and_so_does_robots(store_url: str, tmp_path: Path) -> None:
    async with (
        serving(ScriptedSite(lambda path: html("itself"))) as site,
        serving(ScriptedSite(lambda path: None)) as proxy,
    ):
        proxy.script = lambda path: html("by proxy") if path == f"{site.url}/a" else None
        eu = f"eu=http://me:hunter2@127.0.0.1:{proxy.port}"
        async with process(store_url, tmp_path, SHOAL_PROXIES=eu) as app:
            [result] = (await fetch(app, f"{site.url}/a", crawl_config={"proxy": "eu"})).values()
    assert result.data["title"] == "by proxy"
    assert proxy.told(f"{site.url}/a", "proxy-authorization") == ["Basic bWU6aHVudGVyMg=="]
    assert proxy.times(f"{site.url}/robots.txt") == 1
    assert site.times("/a") == site.times("/robots.txt") == 0


async def test_a_label_that_nobody_knows_is_refused_and_nothing_is_stored(app: App) -> None:
    with pytest.raises(InvalidInput, match="'eu' is not the label of a configured proxy") as refusal:
        await fetch(app, "http://127.0.0.1/a", crawl_config={"proxy": "eu"})
    assert refusal.value.facts["field"] == "crawl_config.proxy"
    assert await app.page_jobs.groups.newest() == []


async def test_a_worker_that_does_not_know_the_label_says_so_and_does_not_go_out_by_itself(
    store_url: str, tmp_path: Path
) -> None:
    async with serving(ScriptedSite(lambda path: html("itself"))) as site:
        async with process(store_url, tmp_path, SHOAL_PROXIES="bots=") as app:
            [result] = (await fetch(app, f"{site.url}/a", crawl_config={"proxy": "bots"})).values()
        assert site.times("/a") == site.times("/robots.txt") == 0
    assert (result.error_code, result.error_message) == (
        "unknown_proxy",
        'This worker has no proxy "bots"; define it in SHOAL_PROXIES on its machine.',
    )


async def test_a_host_whose_robots_cannot_be_had_is_not_asked(app: App) -> None:
    async with serving(ScriptedSite(lambda path: html("x"), robots=(500, {}, ""))) as site:
        [result] = (await fetch(app, f"{site.url}/a")).values()
        assert result.error_code == "robots_unreachable"
        assert site.times("/a") == 0


async def test_headers_go_to_the_origin_of_the_url_alone(app: App) -> None:
    async with serving(ScriptedSite(lambda path: html("there"))) as there:
        moved = (302, {"Location": f"{there.url}/b"}, "")
        async with serving(ScriptedSite(lambda path: moved)) as here:
            config = {"headers": {"X-Key": "secret", "Accept-Language": "de"}}
            await fetch(app, f"{here.url}/a", crawl_config=config)
            assert here.told("/a", "x-key") == ["secret"]
            assert there.told("/b", "x-key") == [None]
            assert there.told("/b", "accept-language") == ["de"]


async def test_a_timeout_hint_is_kept(app: App) -> None:
    async with serving(ScriptedSite(lambda path: html("slow"), late={"/a": "/never"})) as site:
        [result] = (await fetch(app, f"{site.url}/a", crawl_config={"timeout_hint": 0.2}, max_retry=0)).values()
    assert result.error_code == "total_timeout"


async def test_an_address_inside_is_refused_when_it_is_fetched(store_url: str, tmp_path: Path) -> None:
    async with serving(ScriptedSite(lambda path: html("inside"))) as site:
        async with process(store_url, tmp_path, SHOAL_ALLOW_NETWORKS="") as app:
            [result] = (await fetch(app, f"http://localhost:{site.port}/a", max_retry=0)).values()
        assert result.error_code in ("address_not_public", "robots_unreachable")
        assert site.asked == []


async def test_the_pace_of_a_host_is_kept_and_other_hosts_do_not_wait_for_it(store_url: str, tmp_path: Path) -> None:
    async with (
        process(store_url, tmp_path, SHOAL_PAGE_SPEED="fast") as app,
        serving(ScriptedSite(lambda path: html("slow"))) as busy,
        serving(ScriptedSite(lambda path: html("other"))) as other,
    ):
        busy_urls = [f"{busy.url}/{place}" for place in range(8)]
        found = await fetch(app, *busy_urls, f"{other.url}/a")
        assert all(result.status == "success" for result in found.values())
        asked = sorted(at for at, path in zip(busy.moments, busy.asked, strict=True) if path != "/robots.txt")
        assert asked[-1] - asked[0] > 6 * 0.2, "a request every 0.2 s"
        assert other.moments[-1] < asked[-1]


async def test_a_host_that_asks_us_to_wait_is_left_alone_and_the_job_comes_back(app: App) -> None:
    def script(path: str) -> Answer:
        return (429, {"Retry-After": "1"}, "") if site.times(path) == 1 else html("well")

    async with serving(ScriptedSite(script)) as site:
        [result] = (await fetch(app, f"{site.url}/a")).values()
        assert result.status == "success"
        first, second = [at for at, path in zip(site.moments, site.asked, strict=True) if path == "/a"]
        assert second - first > 0.9


@pytest.mark.parametrize("payload", ['{"address": "http://example.org/"}', "[]", "not json {"])
async def test_a_job_of_a_later_version_fails_with_its_reason(app: App, payload: str) -> None:
    job = NewJob(JobId(new_id("job")), "page", None, payload=payload, max_attempts=1, host="http://a.example")
    await app.queue.enqueue([job])
    jobs = page_job_executor(app)
    try:
        [task] = await jobs.settle([], "w1", 1)
        await jobs.settle([await SinglePageJobs(jobs).run(task)], "w1", 0)
    finally:
        jobs.close()
    stored = await app.database.read(lambda tx: app.queue.jobs.get(tx, job.id))
    assert stored is not None
    assert (stored.state, stored.error) == ("failed", f"unreadable_job: {UNREADABLE}")


class LaterSpec(PageSpec, frozen=True, kw_only=True):
    """A group spec as a later version may store it: a field has another type."""

    def text(self) -> str:
        return '{"rule_set": ["of a later version"]}'


async def test_a_group_of_a_later_version_keeps_no_other_job_from_being_done(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(ScriptedSite(lambda path: html("x"))) as site:
        with monkeypatch.context() as upgraded:
            upgraded.setattr("shoal.page_jobs.groups.PageSpec", LaterSpec)
            later = await app.page_jobs.groups.make(GroupConfig.read({"urls": [f"{site.url}/a"], "max_retry": 0}))
        ours = await app.page_jobs.groups.make(GroupConfig.read({"urls": [f"{site.url}/b"]}))
        jobs = page_job_executor(app)
        try:
            await work_off(app, jobs, ours)
            await work_off(app, jobs, later)
        finally:
            jobs.close()
        [result] = await app.page_jobs.groups.results(later.id)
        assert result.result.error_code == "unreadable_job"
        assert (await app.page_jobs.groups.get(later.id)).jobs == {"failed": 1}


async def test_a_result_after_the_group_was_cancelled_is_dropped(app: App) -> None:
    async with serving(ScriptedSite(lambda path: html("x"))) as site:
        jobs = page_job_executor(app)
        try:
            group = await app.page_jobs.groups.make(GroupConfig.read({"urls": [f"{site.url}/a"]}))
            [task] = await jobs.settle([], "w1", 1)
            delivery = await SinglePageJobs(jobs).run(task)
            await app.page_jobs.groups.cancel(group.id)
            assert await jobs.settle([delivery], "w1", 1) == []
            assert await app.page_jobs.groups.results(group.id) == []
        finally:
            jobs.close()


async def test_a_redirect_obeys_the_robots_of_the_host_it_leads_to(app: App) -> None:
    rules = (200, {"Content-Type": "text/plain"}, "User-agent: *\nDisallow: /private\n")
    async with serving(ScriptedSite(lambda path: html("there"), robots=rules)) as there:
        away = {"/a": "/private/a", "/b": "/b"}
        async with serving(ScriptedSite(lambda path: (302, {"Location": there.url + away[path]}, ""))) as here:
            found = await fetch(app, f"{here.url}/a", f"{here.url}/b", max_retry=0)
    denied, fetched = found[f"{here.url}/a"], found[f"{here.url}/b"]
    assert (denied.error_code, denied.final_url) == ("robots_denied", f"{there.url}/private/a")
    assert (fetched.status, fetched.final_url) == ("success", f"{there.url}/b")
    assert sorted(there.asked) == ["/b", "/robots.txt"]


async def test_redirects_keep_the_pace_of_the_host_they_lead_to(store_url: str, tmp_path: Path) -> None:
    rules = (200, {"Content-Type": "text/plain"}, "User-agent: *\nCrawl-delay: 0.4\n")
    hops = {"/1": "/2", "/2": "/3"}

    def script(path: str) -> Answer:
        return (302, {"Location": hops[path]}, "") if path in hops else html("there")

    async with (
        process(store_url, tmp_path, SHOAL_PAGE_SPEED="fast") as app,
        serving(ScriptedSite(script, robots=rules)) as there,
        serving(ScriptedSite(lambda path: (302, {"Location": f"{there.url}/1"}, ""))) as here,
    ):
        [result] = (await fetch(app, f"{here.url}/a")).values()
    assert (result.status, result.final_url) == ("success", f"{there.url}/3")
    assert there.asked == ["/robots.txt", "/1", "/2", "/3"]
    assert min(later - earlier for earlier, later in pairwise(there.moments[1:])) > 0.35


async def test_a_job_whose_redirect_leads_to_a_host_that_is_held_is_put_off(app: App) -> None:
    async with (
        serving(ScriptedSite(lambda path: html("there"))) as there,
        serving(ScriptedSite(lambda path: (302, {"Location": f"{there.url}/b"}, ""))) as here,
    ):
        jobs = page_job_executor(app)
        try:
            await fetch(app, f"{there.url}/first")
            number = (await app.database.run(lambda tx: HostStore().numbers(tx, [there.url])))[there.url]
            held = {
                number: HostUpdate(
                    there.url,
                    status=429,
                    hold_seconds=100.0,
                    shortest_backoff_seconds=1e-6,
                    longest_backoff_seconds=1e-6,
                )
            }
            await app.database.run(lambda tx: HostStore().record(tx, held))
            await app.page_jobs.groups.make(GroupConfig.read({"urls": [f"{here.url}/a"]}))
            [task] = await jobs.settle([], "w1", 1)
            put_off = await SinglePageJobs(jobs).run(task)
        finally:
            jobs.close()
    assert isinstance(put_off, PutOff)
    assert put_off.wait_seconds > 90
    assert there.times("/b") == 0


async def test_a_page_that_robots_txt_is_known_to_forbid_takes_no_slot(store_url: str, tmp_path: Path) -> None:
    rules = (200, {"Content-Type": "text/plain"}, "User-agent: *\nDisallow: /private\n")
    async with (
        process(store_url, tmp_path, SHOAL_PAGE_SPEED="slow") as app,
        serving(ScriptedSite(lambda path: html("x"), robots=rules)) as site,
    ):
        jobs = page_job_executor(app)
        try:
            group = await app.page_jobs.groups.make(GroupConfig.read({"urls": [f"{site.url}/private/first"]}))
            await work_off(app, jobs, group)
            before = await next_slot(app, site)
            group = await app.page_jobs.groups.make(GroupConfig.read({"urls": [f"{site.url}/private/second"]}))
            await work_off(app, jobs, group)
            after = await next_slot(app, site)
        finally:
            jobs.close()
        [told] = await app.page_jobs.groups.results(group.id)
    assert told.result.error_code == "robots_denied"
    assert after == before
    assert site.asked == ["/robots.txt"]


async def next_slot(app: App, site: ScriptedSite) -> int:
    """Return when the host may be requested next, as stored."""
    rows = await app.database.read(lambda tx: tx.all("hosts_at_origins", origins=[site.url]))
    return int(rows[0]["next_at"])


@pytest.mark.parametrize(("given", "attempts"), [({}, 3), ({"max_retry": 0}, 1)], ids=["default", "given"])
async def test_a_page_is_tried_as_often_as_its_worker_says_unless_a_number_was_given(
    store_url: str, tmp_path: Path, given: dict[str, int], attempts: int
) -> None:
    async with serving(ScriptedSite(lambda path: (500, {}, ""))) as site:
        async with process(store_url, tmp_path, WORKER_JOB_ATTEMPTS="1") as creator:
            config = GroupConfig.read({"urls": [f"{site.url}/page"], **given})
            group = await creator.page_jobs.groups.make(config)
        async with process(store_url, tmp_path, WORKER_JOB_ATTEMPTS="3") as worker:
            jobs = page_job_executor(worker)
            try:
                await work_off(worker, jobs, group)
            finally:
                jobs.close()
    assert site.times("/page") == attempts


async def test_a_refused_result_costs_the_other_results_of_its_commit_no_attempt(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with process(store_url, tmp_path, WORKER_JOB_ATTEMPTS="1") as creator:
        urls = [f"https://{host}.example/" for host in "abc"]
        group = await creator.page_jobs.groups.make(GroupConfig.read({"urls": urls}))
    await refuse_results(store_url, "http_status", 404)
    limits: list[timedelta | None] = []
    async with process(store_url, tmp_path, WORKER_JOB_ATTEMPTS="3") as worker:
        run = type(worker.database).run

        async def noted(database: Any, work: Any, *, within: timedelta | None = None) -> Any:
            limits.append(within)
            return await run(database, work, within=within)

        jobs = page_job_executor(worker)
        try:
            tasks = await jobs.settle([], "w1", 3)
            monkeypatch.setattr(type(worker.database), "run", noted)
            failed = Result(Status.FAIL, "", 1, error_code="connect_error", error_message="It did not answer.")
            results = [failed, Result(Status.SUCCESS, "", 1, http_status=404), failed]
            sent = [ResultDelivery(task.lease.fence, result) for task, result in zip(tasks, results, strict=True)]
            await jobs.settle(sent, "w1", 0)
        finally:
            jobs.close()
        assert (await worker.page_jobs.groups.get(group.id)).jobs == {"pending": 3}
        assert set(limits) == {worker.queue.answer_within}
        assert len(limits) == 6, "together, each alone, the failure in place of the second, the rest"
