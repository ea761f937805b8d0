"""Two controllers and two workers as real processes with a control plane, and everything that may happen to them. After
each fault the rows of all jobs are consistent, and nothing is lost.

Times are a tenth of the usual ones. Offers last for an hour where a test is about the return of lanes, so that no job
returns merely because its offer has expired.
"""

import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import ledger
from tests.support.control_fleet import TwoControllers, command, node, wait_for_node
from tests.support.fleet import LONG_LEASE, SEED, TENTH, seed_of_run, send_all, wait_for
from tests.support.fleet_storm import FleetStorm, Scene
from tests.support.ledger import Expected
from tests.support.redis_faults import RedisFaults, redis_behind_a_proxy
from tests.support.servers import Servers
from tests.support.site import Site, path_of
from tests.support.storm import Work

HASTE = TENTH | {
    "GRPC_HEARTBEAT_INTERVAL": "200ms",
    "SHOAL_PAGE_SPEED": "max",
    "MAX_CONCURRENT_CURL": "5",
    "WORKER_BACKOFF_MS": "100",
    "SHOAL_POISON_LIMIT": "100",  # leases of one second may expire without a fault, and no fault is caused by a job
}
SLOTS = 5  # page jobs at once
IN_LANES = 4 * SLOTS  # page jobs that two idle nodes are offered at most


@contextmanager
def two_controllers(folder: Path, store_url: str, **env: str) -> Iterator[Scene]:
    given = HASTE | {"SHOAL_OFFER_TTL": "1h"} | env
    with Site(pages=150) as site, TwoControllers(folder, store_url, **given) as fleet:
        site.allowed = 0
        fleet.start()
        yield Scene(fleet, site)


def lost_nodes(fleet: TwoControllers) -> Counter[str]:
    """Return which nodes were declared lost, and how often, by whichever controller."""
    said = "".join(controller.said() for controller in fleet.controllers)
    return Counter(re.findall(r'"event":"node_lost"[^\n]*?"node_id":"([^"]+)"', said))


def dispatch_counts(fleet: TwoControllers) -> Counter[str]:
    """Return the jobs that were dispatched to each target, by both controllers."""
    found: Counter[str] = Counter()
    for number in (1, 0):
        fleet.ask(number)
        for target, count in re.findall(r'shoal_grpc_dispatch_total{target="([^"]+)"} (\d+)', fleet.metrics()):
            found[target] += int(count)
    return found


def test_jobs_are_spread_by_health_over_the_nodes_of_two_controllers(postgres_url: str, tmp_path: Path) -> None:
    with two_controllers(tmp_path, postgres_url, WORKER_CONCURRENCY="1") as scene, Site(pages=5) as slow:
        fleet, slow.allowed = scene.fleet, 0
        crawl = fleet.submit(slow)
        wait_for(lambda: any(node(fleet, one.name)["active_tasks"] for one in fleet.workers), "a busy node")
        [busy] = [one.name for one in fleet.workers if node(fleet, one.name)["active_tasks"]]
        idle = ({"worker-1", "worker-2"} - {busy}).pop()
        fleet.ask(1)
        scores = {name: wait_for_node(fleet, name)["health_score"] for name in (busy, idle)}
        assert scores[busy] == pytest.approx(scores[idle] - 0.3)
        for number in (0, 1):
            fleet.ask(number)
            assert fleet.get(f"/api/v1/nodes/{idle}/explain")["rank"] == 1
            scene.fetch(10 * number, 10)
        spread = sum((ledger.dispatched(postgres_url, group) for group in scene.groups), Counter[str]())
        assert set(spread) == {busy, idle}
        assert spread.total() == IN_LANES
        slow.allowed = None
        scene.finish()
        assert fleet.wait_for_state(crawl, "completed")["pages"] == 5
        wait_for(lambda: dispatch_counts(fleet) == spread + Counter({busy: 1}), "all of them in the metrics")


def test_the_work_and_the_lane_of_a_killed_worker_go_to_the_other(postgres_url: str, tmp_path: Path) -> None:
    with two_controllers(tmp_path, postgres_url) as scene:
        fleet, [killed, other] = scene.fleet, scene.fleet.workers
        group = scene.fetch(0, IN_LANES)
        assert ledger.dispatched(postgres_url, group)[killed.name] > SLOTS, "more than it can hold"
        scene.wait_until_both_work()
        killed.kill()
        wait_for_node(fleet, killed.name, state="lost")
        scene.finish()
        assert lost_nodes(fleet)[killed.name] == 1
        assert other.alive
        killed.start()
        wait_for_node(fleet, killed.name, state="connected", session_epoch=2)


@pytest.mark.exhaustive
def test_a_worker_that_slept_for_three_leases_is_a_node_again_and_changes_nothing(
    postgres_url: str, tmp_path: Path
) -> None:
    with two_controllers(tmp_path, postgres_url) as scene:
        fleet, [sleeper, _] = scene.fleet, scene.fleet.workers
        scene.fetch(0, IN_LANES)
        scene.wait_until_both_work()
        send_all(sleeper.family(), signal.SIGSTOP)
        wait_for_node(fleet, sleeper.name, state="lost")  # after three intervals of a second, as long as three leases
        wait_for(lambda: scene.held_by(sleeper.name) == 0, "leases that ran out")
        scene.site.allowed = IN_LANES // 2
        send_all(sleeper.family(), signal.SIGCONT)
        wait_for_node(fleet, sleeper.name, state="connected")
        scene.finish()
        assert sleeper.alive


@pytest.mark.exhaustive
def test_a_node_that_is_cut_off_keeps_its_leases_and_is_back_with_a_new_session(
    postgres_url: str, tmp_path: Path
) -> None:
    """The connection forwards nothing, and neither end is notified. Pings notice that too, after 15 to 25 s: see the
    wire tests."""
    with two_controllers(tmp_path, postgres_url, **LONG_LEASE) as scene:
        fleet, [alone, _] = scene.fleet, scene.fleet.workers
        scene.fetch(0, IN_LANES)
        scene.wait_until_both_work()
        before = {job for job, holder in ledger.holders(postgres_url, "page").items() if holder.startswith(alone.name)}
        fleet.proxies[0].cut()
        wait_for_node(fleet, alone.name, state="lost")
        after = {job for job, holder in ledger.holders(postgres_url, "page").items() if holder.startswith(alone.name)}
        assert before <= after, "leases do not depend on sessions"
        scene.site.allowed = IN_LANES
        wait_for(lambda: not ledger.open_jobs(postgres_url), "all of them done, also by the node that is cut off")
        score = f'shoal_grpc_node_health_score{{node_id="{alone.name}"}}'
        wait_for(lambda: score not in fleet.metrics(), "a controller that has read that the node is lost")
        group = scene.fetch(IN_LANES, 5)
        assert alone.name not in ledger.dispatched(postgres_url, group)
        fleet.move_proxy(0, 1)
        fleet.proxies[0].mend()
        shown = wait_for_node(fleet, alone.name, state="connected", session_epoch=2)
        assert shown["controller"].startswith("controller-2/")
        scene.finish()


@pytest.mark.exhaustive
def test_nothing_is_dispatched_to_a_node_once_its_drain_is_stored(postgres_url: str, tmp_path: Path) -> None:
    with two_controllers(tmp_path, postgres_url) as scene:
        fleet, [drained, other] = scene.fleet, scene.fleet.workers
        scene.fetch(0, IN_LANES)
        scene.wait_until_both_work()
        fleet.ask(1)  # its session is on the other controller
        command(fleet, drained.name, "drain", reason="move")
        scene.site.allowed = IN_LANES
        wait_for_node(fleet, drained.name, state="drained", active_pages=0, health_score=0.0)
        wait_for(lambda: not ledger.open_jobs(postgres_url), "the end of what was in its lane")
        for number in (0, 1):
            fleet.ask(number)
            group = scene.fetch(IN_LANES + 5 * number, 5)
            assert drained.name not in ledger.dispatched(postgres_url, group)
        scene.finish()
        command(fleet, drained.name, "resume")
        wait_for_node(fleet, drained.name, state="connected")
        assert other.alive


@pytest.mark.exhaustive
def test_a_flapping_node_gets_no_offers_and_still_works(postgres_url: str, tmp_path: Path) -> None:
    with two_controllers(tmp_path, postgres_url) as scene:
        fleet, [flapping, steady] = scene.fleet, scene.fleet.workers
        scene.site.allowed = None
        for epoch in range(2, 7):
            fleet.proxies[0].reset()
            wait_for_node(fleet, flapping.name, state="connected", session_epoch=epoch)
        for number in (0, 1):  # whichever of them had the sessions
            fleet.ask(number)
            wait_for(
                lambda: fleet.get(f"/api/v1/nodes/{flapping.name}/explain")["reason"] == "flapping", "a flapping node"
            )
            group = scene.fetch(10 * number, 10)
            assert set(ledger.dispatched(postgres_url, group)) <= {steady.name, ""}
        scene.finish()


@pytest.mark.exhaustive
def test_the_nodes_of_a_killed_controller_go_on_and_find_the_other(postgres_url: str, tmp_path: Path) -> None:
    with two_controllers(tmp_path, postgres_url) as scene:
        fleet, [orphan, _] = scene.fleet, scene.fleet.workers
        scene.fetch(0, IN_LANES)
        scene.wait_until_both_work()
        fleet.move_proxy(0, 1)
        fleet.controllers[0].kill()
        fleet.ask(1)
        shown = wait_for_node(fleet, orphan.name, state="connected", session_epoch=2)
        assert shown["controller"].startswith("controller-2/")
        command(fleet, orphan.name, "config_update", page_slots=7)
        fleet.controllers[0].start()
        scene.finish()
        fleet.ask(0)
        fleet.wait_ready()
        wait_for_node(fleet, orphan.name, page_slots=7)


@pytest.mark.exhaustive
def test_a_job_that_kills_every_worker_ends_as_poison_and_the_crawl_beside_it_goes_on(
    postgres_url: str, tmp_path: Path
) -> None:
    with (
        two_controllers(tmp_path, postgres_url, SHOAL_POISON_LIMIT="3") as scene,
        Site(pages=20, delay=0.02) as innocent,
    ):
        fleet, killed = scene.fleet, list[str]()
        workers = {worker.name: worker for worker in fleet.workers}

        def kill_its_worker() -> None:
            holders = ledger.holders(postgres_url, "page").values()
            for name in {holder.partition("/")[0] for holder in holders}:
                killed.append(name)
                workers[name].kill()
                workers[name].start()

        scene.site.allowed = None
        scene.site.call_at(path_of(0), kill_its_worker)
        crawl = fleet.submit(innocent)
        group = scene.fleet.fetch([scene.site.url(0)])
        wait_for(lambda: fleet.group(group)["state"] == "completed", "the end of the job", seen=lambda: str(killed))
        assert fleet.group(group)["jobs"] == {"expired": 1}
        assert len(killed) == 4
        assert set(killed) == set(workers)
        assert fleet.wait_for_state(crawl, "completed", "failed")["pages"] == 20
        assert ledger.check(postgres_url, crawl, Expected(urls=innocent.urls)) == []
        scene.check()


@pytest.mark.exhaustive
@pytest.mark.parametrize(("driver", "faults"), [("postgres", 20), ("sqlite", 7)])
def test_random_faults_of_a_fleet_lose_nothing_and_the_ledger_holds_after_each(
    request: pytest.FixtureRequest, tmp_path: Path, driver: str, faults: int
) -> None:
    rage(tmp_path, request.getfixturevalue(f"{driver}_url"), faults)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("driver", "faults", "durable"), [("postgres", 20, True), ("sqlite", 13, False)])
def test_random_faults_of_a_fleet_whose_lanes_are_on_redis_lose_nothing(
    request: pytest.FixtureRequest, servers: Servers, tmp_path: Path, driver: str, faults: int, durable: bool
) -> None:
    """Redis is flushed, killed (with and without an append-only file), cut off and slow, and evicts; its scripts are
    forgotten; all of it besides the faults of controllers and workers."""
    with redis_behind_a_proxy(servers, durable=durable) as redis:
        rage(tmp_path, request.getfixturevalue(f"{driver}_url"), faults, redis)


def rage(folder: Path, store_url: str, faults: int, redis: RedisFaults | None = None) -> None:
    """Let faults strike a fleet under load, and count what is left."""
    seed = seed_of_run()
    env = {"SHOAL_OFFER_TTL": "1s"} | ({} if redis is None else {"REDIS_URL": redis.url, "SHOAL_LANES": "redis"})
    try:
        with two_controllers(folder, store_url, **env) as scene, Site(pages=100) as crawled:
            fleet, scene.site.allowed, scene.site.delay = scene.fleet, None, 0.2
            crawl_id = fleet.submit(crawled, concurrency=2)
            storm = FleetStorm(scene, Work(crawled, crawl_id), seed, None if redis is None else redis.all())
            storm.rage(faults)
            scene.finish()
            fleet.wait_for_state(crawl_id, "completed", "failed")
            found = ledger.check(store_url, crawl_id, Expected(urls=crawled.urls))
            assert not found, "\n".join(found)
            assert len(storm.struck) == faults
            for worker in fleet.workers:
                wait_for_node(fleet, worker.name, state="connected")
            for member in (*fleet.controllers, *fleet.workers):
                assert "Traceback" not in member.said()
    except BaseException as error:
        error.add_note(f"again with {SEED}={seed}")
        raise
