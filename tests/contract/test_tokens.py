"""Contract of tokens and the audit log, on each store."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from shoal.access.audit_log import AuditEntry, AuditLog
from shoal.access.token import ROLES, Caller, TokenRequest, TokenScope, allows, local_caller
from shoal.access.tokens import (
    FRESH_SECONDS,
    MOST_REMEMBERED,
    USED_EVERY,
    NewToken,
    TokenJanitor,
    Tokens,
    TokenUseNotRecorded,
)
from shoal.base.database import Database, Tx
from shoal.base.errors import BackendUnavailable, InvalidInput, NotAllowed, NotFound, StateConflict
from shoal.crawl.frontier.admin import FrontierAdmin
from shoal.crawl.frontier.sql_admin import SqlFrontierAdmin
from shoal.crawl.states import CrawlState
from shoal.drivers.folder_bodies import FolderBodies
from shoal.queue.job import LeaseRequest, bot_holder
from shoal.queue.job_admin_store import JobFilter
from shoal.queue.states import JobState
from tests.contract.conftest import Bench, Breakpoint, BreakpointDatabase, Severed, until_blocked

ME = local_caller("127.0.0.1")


def tokens_of(bench: Bench, database: Database | None = None) -> Tokens:
    """The tokens of one more process on the store."""
    over = database or bench.database
    audit_log = AuditLog(over)
    return Tokens(
        over,
        audit_log,
        bench.clock,
        bench.signals,
        bench.queue.recovery.release_bot,
    )


def audit_log_of(bench: Bench) -> AuditLog:
    return AuditLog(bench.database)


def token_request(role: str = "viewer", name: str = "ci", **more: object) -> TokenRequest:
    of_node = {"node_id": "crawler-1"} if role == "node" else {}
    return TokenRequest.read({"name": name, "role": role, **of_node, **more})


def holder_of(minted: NewToken) -> Caller:
    token = minted.token
    return Caller(who=token.id, scopes=token.scopes, until=token.expires_at)


@pytest.fixture
async def first_token(bench: Bench) -> NewToken:
    """The first token of a store is an admin's."""
    return await tokens_of(bench).create(token_request("admin", "first"), ME)


@pytest.mark.parametrize("role", [role for role in ROLES if role != "admin"])
async def test_the_first_token_must_be_that_of_an_admin(bench: Bench, role: str) -> None:
    tokens = tokens_of(bench)
    with pytest.raises(InvalidInput, match=r"role of the first token must be admin.*--role admin"):
        await tokens.create(token_request(role), ME)
    assert not await tokens_of(bench).any_made()
    assert await audit_log_of(bench).newest() == []
    admin = await tokens.create(token_request("admin"), ME)
    await tokens.revoke(admin.token.id, ME, even_last=True)
    await tokens.create(token_request(role), ME)  # the store knows tokens already


@pytest.mark.usefixtures("first_token")
async def test_a_token_opens_what_its_role_says_and_nothing_else_is_kept_of_it(bench: Bench) -> None:
    tokens = tokens_of(bench)
    minted = await tokens.create(token_request("operator"), ME)
    found = await tokens.verify(minted.text)
    assert found is not None
    assert found.id == minted.token.id
    assert [scope for scope in TokenScope if allows(found.scopes, scope)] == ["read", "write"]
    rows = str(await bench.sql("SELECT * FROM token"))
    assert minted.text not in rows
    assert minted.text.split("_")[2] not in rows


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.usefixtures("first_token")
async def test_each_role_can_be_given(bench: Bench, role: str) -> None:
    tokens = tokens_of(bench)
    minted = await tokens.create(token_request(role), ME)
    assert minted.token.scopes == ROLES[role]


@pytest.mark.usefixtures("first_token")
async def test_a_token_with_any_character_changed_is_rejected(bench: Bench) -> None:
    tokens = tokens_of(bench)
    right, other = await tokens.create(token_request(), ME), await tokens.create(token_request(), ME)
    mixed = f"shl_{right.text.split('_')[1]}_{other.text.split('_')[2]}"
    for text in ("", "shl_", right.text[:-1], right.text + "0", right.text.upper(), mixed, "x" * 100_000):
        assert await tokens.verify(text) is None


@pytest.mark.usefixtures("first_token")
async def test_the_secret_of_one_under_the_name_of_another_opens_nothing(bench: Bench) -> None:
    tokens = tokens_of(bench)
    first, second = await tokens.create(token_request(), ME), await tokens.create(token_request("admin"), ME)
    await bench.sql(f"UPDATE token SET hash = 'of something else' WHERE id = '{second.token.id}'")
    assert await tokens.verify(second.text) is None
    assert await tokens.verify(first.text) is not None


@pytest.mark.usefixtures("first_token")
async def test_a_revoked_token_is_refused_at_once_here_and_in_a_moment_elsewhere(bench: Bench) -> None:
    here, elsewhere = tokens_of(bench), tokens_of(bench)
    minted = await here.create(token_request(), ME)
    assert await here.verify(minted.text) is not None
    assert await elsewhere.verify(minted.text) is not None
    revoked = await here.revoke(minted.token.id, ME)
    assert (revoked.state, revoked.revoked_at is not None) == ("revoked", True)
    assert await here.verify(minted.text) is None
    await bench.jump(FRESH_SECONDS)
    assert await elsewhere.verify(minted.text) is None


@pytest.mark.usefixtures("first_token")
async def test_a_token_ends_when_its_time_is_over_by_the_clock_of_the_store(bench: Bench) -> None:
    tokens = tokens_of(bench)
    minted = await tokens.create(token_request(expires_in="1h"), ME)
    await bench.jump(3590)
    assert await tokens.verify(minted.text) is not None
    await bench.jump(10)
    assert await tokens.verify(minted.text) is None
    assert (await tokens.get(minted.token.id)).state == "expired"


@pytest.mark.usefixtures("first_token")
async def test_use_is_noted_at_most_once_a_minute(bench: Bench) -> None:
    tokens = tokens_of(bench)
    minted = await tokens.create(token_request(), ME)
    seen = []
    for _ in range(4):
        await tokens.verify(minted.text)
        seen.append((await tokens.get(minted.token.id)).last_used_at)
        await bench.jump(USED_EVERY.total_seconds() / 2 + 1)
    assert seen[0] is not None
    assert seen[0] == seen[1] < seen[2] == seen[3]


@pytest.mark.usefixtures("first_token")
async def test_a_token_works_and_a_warning_is_logged_if_its_use_cannot_be_recorded(bench: Bench) -> None:
    severed = Severed(bench.database)
    tokens = tokens_of(bench, severed)
    minted = await tokens.create(token_request(), ME)
    severed.writes = False
    assert await tokens.verify(minted.text) is not None
    [told] = [signal for signal in bench.signals_seen if isinstance(signal, TokenUseNotRecorded)]
    assert told.token_id == minted.token.id


@pytest.mark.usefixtures("first_token")
async def test_a_verified_token_is_not_read_from_the_store_again_for_a_moment(bench: Bench) -> None:
    severed = Severed(bench.database)
    tokens = tokens_of(bench, severed)
    minted = await tokens.create(token_request(), ME)
    assert await tokens.verify(minted.text) is not None
    severed.reads = severed.writes = False
    assert await tokens.verify(minted.text) is not None


@pytest.mark.usefixtures("first_token")
async def test_the_cache_of_verified_tokens_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.access.tokens.MOST_REMEMBERED", 3)
    assert MOST_REMEMBERED > 3
    tokens = tokens_of(bench)
    for _ in range(5):
        assert await tokens.verify((await tokens.create(token_request(), ME)).text) is not None
    assert len(tokens._verified) == 3


async def test_once_there_was_a_token_everybody_needs_one_for_ever(bench: Bench) -> None:
    tokens, elsewhere = tokens_of(bench), tokens_of(bench)
    assert not await elsewhere.any_made()
    minted = await tokens.create(token_request("admin"), ME)
    assert await tokens.any_made()
    await bench.jump(FRESH_SECONDS)
    assert await elsewhere.any_made()
    await tokens.revoke(minted.token.id, ME, even_last=True)
    assert await tokens_of(bench).any_made()


@pytest.mark.usefixtures("first_token")
async def test_no_token_makes_one_with_more_than_it_has(bench: Bench) -> None:
    tokens = tokens_of(bench)
    operator = holder_of(await tokens.create(token_request("operator"), ME))
    await tokens.create(token_request("viewer"), operator)
    for role in ("admin", "bot", "node"):
        with pytest.raises(NotAllowed, match=f"lacks {role}"):
            await tokens.create(token_request(role), operator)
    assert len(await tokens.newest()) == 3


async def test_no_token_makes_one_that_outlasts_it(bench: Bench) -> None:
    tokens = tokens_of(bench)
    admin = holder_of(await tokens.create(token_request("admin", expires_in="1d"), ME))
    await tokens.create(token_request("bot", expires_in="12h"), admin)
    for more in ({}, {"expires_in": "2d"}):
        with pytest.raises(InvalidInput, match="expires_in is later than the expiry"):
            await tokens.create(token_request("bot", **more), admin)
    assert len(await tokens.newest()) == 2


async def test_the_last_admin_is_not_revoked_by_mistake(bench: Bench) -> None:
    tokens = tokens_of(bench)
    first, second = await tokens.create(token_request("admin"), ME), await tokens.create(token_request("admin"), ME)
    await tokens.create(token_request("viewer"), ME)
    await tokens.revoke(first.token.id, ME)
    with pytest.raises(StateConflict, match="is the last valid admin token"):
        await tokens.revoke(second.token.id, ME)
    assert (await tokens.get(second.token.id)).state == "valid"
    assert (await tokens.revoke(second.token.id, ME, even_last=True)).state == "revoked"


async def test_of_two_admins_who_revoke_each_other_one_stays(postgres_bench: Bench) -> None:
    bench, point = postgres_bench, Breakpoint("lock_admin_tokens")
    tokens = tokens_of(bench)
    first, second = await tokens.create(token_request("admin"), ME), await tokens.create(token_request("admin"), ME)
    slow = asyncio.create_task(tokens_of(bench, BreakpointDatabase(bench.database, point)).revoke(first.token.id, ME))
    await point.wait_until_reached(slow)
    late = asyncio.create_task(tokens.revoke(second.token.id, ME))
    await until_blocked(bench)
    point.go.set()
    await slow
    with pytest.raises(StateConflict):
        await late


async def test_the_jobs_of_a_bot_are_returned_when_its_token_expires(bench: Bench, first_token: NewToken) -> None:
    tokens = tokens_of(bench)
    janitor = TokenJanitor(tokens)
    job_ids = [await bench.enqueue(), await bench.enqueue()]
    for expires_in in ("1h", "3h"):
        minted = await tokens.create(token_request("bot", expires_in=expires_in), ME)
        request = LeaseRequest(bot_holder(minted.token.id, "b"), ["page"], lock_ttl=timedelta(hours=5))
        await bench.queue.finish_and_lease([], request, 1)
    assert (await janitor.run_once()).did == ""
    await bench.jump(3601)
    assert (await janitor.run_once()).did == "returned the jobs of 1 expired token"
    assert (await janitor.run_once()).did == ""
    jobs = sorted([await bench.job(job_id) for job_id in job_ids], key=lambda job: job.state)
    assert [(job.state, job.attempts) for job in jobs] == [(JobState.LOCKED, 0), (JobState.PENDING, 0)]
    assert jobs[1].state_reason == "token_expired"


async def test_a_token_that_is_not_there_cannot_be_revoked(bench: Bench) -> None:
    with pytest.raises(NotFound, match='token "tok_nothing" does not exist'):
        await tokens_of(bench).revoke("tok_nothing", ME)


@pytest.mark.usefixtures("first_token")
async def test_creating_and_revoking_are_in_the_audit_log_once_with_caller_and_address(bench: Bench) -> None:
    tokens = tokens_of(bench)
    minted = await tokens.create(token_request("bot", name="scraper"), ME)
    caller = Caller(who="tok_boss", scopes=frozenset({TokenScope.ADMIN}), address="192.0.2.7")
    for _ in range(2):
        await tokens.revoke(minted.token.id, caller)
    revoked, created, _ = await audit_log_of(bench).newest()
    assert (created.action.name, created.who, created.address) == ("token.created", "local", "127.0.0.1")
    assert created.action.facts == {"name": "scraper", "scopes": ["bot"], "node_id": None, "expires_in": None}
    assert (revoked.action.name, revoked.action.subject) == ("token.revoked", minted.token.id)
    assert (revoked.who, revoked.address) == ("tok_boss", "192.0.2.7")


async def test_rejected_requests_are_not_in_the_audit_log(bench: Bench) -> None:
    tokens = tokens_of(bench)
    admin = holder_of(await tokens.create(token_request("admin", expires_in="1d"), ME))
    with pytest.raises(InvalidInput):
        await tokens.create(token_request("bot"), admin)
    assert len(await audit_log_of(bench).newest()) == 1


async def test_the_audit_log_is_listed_newest_first_by_pages_and_by_subject(bench: Bench) -> None:
    audit_log = audit_log_of(bench)
    for subject in ("a", "b", "a"):
        await audit_log.note(ME, AuditEntry("crawl.removed", subject))
    newest = await audit_log.newest(limit=2)
    assert [entry.action.subject for entry in newest] == ["a", "b"]
    [oldest] = await audit_log.newest(before=newest[-1].number)
    assert oldest.action.subject == "a"
    assert len(await audit_log.newest(subject="a")) == 2


async def test_tokens_are_listed_newest_first_by_pages(bench: Bench) -> None:
    tokens = tokens_of(bench)
    for name in ("one", "two", "three"):
        await tokens.create(token_request("admin", name), ME)
    newest = await tokens.newest(limit=2)
    assert [token.name for token in newest] == ["three", "two"]
    assert [token.name for token in await tokens.newest(before=newest[-1].number)] == ["one"]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"role": "viewer"}, "name is missing"),
        ({"name": ""}, "name cannot be ''"),
        ({"name": " x", "role": "bot"}, "name begins or ends with a space"),
        ({"name": "a\nb", "role": "bot"}, "name begins or ends with a space, or contains a control character"),
        ({"name": "x" * 101, "role": "bot"}, "name cannot be"),
        ({"name": "x", "role": "root"}, "role cannot be 'root'"),
        ({"name": "x", "role": "bot", "expires_in": "soon"}, "is not a duration; write it as"),
        ({"name": "x", "role": "bot", "expires_in": "-1d"}, "is not a duration; write it as"),
        ({"name": "x", "role": "bot", "hash": "00"}, "hash is not a known field"),
    ],
)
def test_an_invalid_request_is_rejected_with_the_name_of_the_field(values: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        TokenRequest.read(values)
    assert says in caught.value.message


@pytest.mark.parametrize("more", [{}, {"role": "bot", "scopes": ["read"]}])
def test_a_token_request_names_a_role_or_scopes(more: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match="give one of viewer, operator, admin, bot, node, or a list of scopes"):
        TokenRequest.read({"name": "x", **more}).wanted()


async def unwritable(tx: Tx, action: str, subject: str) -> None:
    raise BackendUnavailable("the log", "it is away", "wait")


async def test_an_action_whose_audit_entry_cannot_be_written_is_not_carried_out(bench: Bench) -> None:
    await bench.job_admin.set_quota("project:old", 1)
    crawl = await bench.submit()
    await bench.crawls.stop(crawl.id)
    await bench.enqueue()
    await bench.queue.finish(await bench.lease())
    admin_store = SqlFrontierAdmin(bench.dialect)
    bodies = FolderBodies(Path("nowhere"), bench.clock)
    frontier_admin = FrontierAdmin(bench.database, bench.crawls, bench.queue, admin_store, bodies)
    deeds = [
        bench.job_admin.set_quota("project:new", 1, audit=unwritable),
        bench.job_admin.remove_quota("project:old", audit=unwritable),
        bench.job_admin.purge(JobFilter(), audit=unwritable),
        bench.crawls.stop(crawl.id, force=True, audit=unwritable),
        frontier_admin.erase(crawl.id, audit=unwritable),
    ]
    for deed in deeds:
        with pytest.raises(BackendUnavailable):
            await deed
    assert [quota.key for quota in await bench.job_admin.quotas()] == ["project:old"]
    assert await bench.number("SELECT count(*) FROM job WHERE kind = 'page'") == 1
    assert await bench.state(crawl) is CrawlState.STOPPED
