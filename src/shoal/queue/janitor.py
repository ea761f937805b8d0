"""The janitor: returns jobs with expired leases, offers that no node took, and parked jobs whose quota is free again.
Several may run at the same time; each change is a compare-and-set."""

from datetime import timedelta

from shoal.base.clock import Clock
from shoal.base.database.clock import ClockCheck
from shoal.base.errors import StorageFull, TimeError
from shoal.base.service import LONGEST_BACKOFF_SECONDS, PassResult
from shoal.queue.job import RUN_KINDS, Fence, LostJob
from shoal.queue.recovery import Recovery

BATCH = 100
MOST_FAILING = 1_000  # jobs that cannot be expired and do not count towards a batch
FIRST_RETRY_SECONDS = 2.0
LONGEST_RETRY_SECONDS = 300.0
WORTH_REPORTING = 1_000_000  # microseconds by which a clock went back


class Janitor:
    """Expires leases that were not renewed.

    While the store is unreachable or full, no worker can renew its lease, so no lease expires within one lease term
    after the end of an outage. A janitor that has just started needs no such grace period, because leases live in the
    store. But a `cautious` janitor cannot know whether an outage preceded its start: if no lease at all was renewed
    recently, it assumes that there was an outage. Bots renew through a controller that may have been down as well, so
    their leases do not expire for `bot_grace` after the start. After a jump of the store's clock, no lease expires
    within one lease term, because holders need that time to renew, and bots get their grace period again.

    A job that cannot be expired is reported and tried again after a growing delay. It delays no other job, neither by
    the back-off of the service, which is meant for a store that fails, nor by its place in the batch.
    """

    name = "janitor"

    def __init__(
        self,
        recovery: Recovery,
        clock: Clock,
        *,
        cautious: bool = False,
        bot_grace: timedelta = timedelta(0),
    ) -> None:
        self._recovery = recovery
        self._clock = clock
        self._hold_until = 0.0
        self._last_pass: float | None = None
        self._outage = False
        self._cautious = cautious
        self._bot_grace = bot_grace.total_seconds()
        self._bots_until = self._now() + self._bot_grace
        self._store_clock = recovery.clock_watch(clock)
        self._lanes_incomplete = False
        self._own_clock: tuple[int, float] | None = None  # at the last pass: wall-clock time and monotonic time
        self._failing: dict[Fence, tuple[float, float]] = {}  # when to try again, and the delay until then

    async def run_once(self) -> PassResult:
        began = self._now()
        try:
            limit = BATCH + min(len(self._failing), MOST_FAILING)
            found = await self._recovery.expired(limit, bots=self._now() >= self._bots_until)
            self._check_clocks(await self._store_clock.check())  # after the query: a clock jump may explain its result
            if self._cautious:
                self._outage = bool(found) and await self._nobody_extends()
                self._cautious = False
            maintenance = await self._maintain()
            if self._in_grace(began):
                return PassResult(did=maintenance, again_in=timedelta(0) if self._lanes_incomplete else None)
            lost = self._due(found)
            moved = await self._expire_all(lost)
        except (TimeError, StorageFull):  # no worker could renew its lease either
            self._last_pass = None
            self._outage = True
            raise
        except Exception:  # workers could renew their leases meanwhile, so the back-off of the service is no outage
            self._last_pass = began + LONGEST_BACKOFF_SECONDS
            raise
        again = timedelta(0) if self._lanes_incomplete or (len(found) == limit and moved) else None
        swept = f"returned {moved} of {len(lost)} jobs with expired leases" if lost else ""
        return PassResult(did=", ".join(filter(None, (swept, maintenance))), again_in=again)

    def _in_grace(self, now: float) -> bool:
        """Return whether expiry is suspended because the store, or this process, was down and has just come back."""
        lease = self._recovery.settings.lease.total_seconds()
        last, self._last_pass = self._last_pass, now
        if self._outage or (last is not None and now - last > lease):
            self._outage = False
            self._hold_until = now + lease
        return now < self._hold_until

    async def _maintain(self) -> str:
        """Repeat what normally happens immediately, in case it was missed: release jobs that became due, return offers
        that no node took, unpark jobs whose quota is free again, and put jobs back into their lanes."""
        offers = await self._recovery.tidy(BATCH)
        freed = await self._recovery.unpark(BATCH)
        repair = await self._recovery.repair_lanes()
        self._lanes_incomplete = repair.more
        done = [
            (offers, "withdrew {} offers"),
            (freed, "unparked {} jobs"),
            (repair.restored, "put {} jobs back into their lanes"),
        ]
        return ", ".join(words.format(count) for count, words in done if count)

    def _due(self, found: list[LostJob]) -> list[LostJob]:
        """Return the jobs to expire in this pass: not those that failed recently."""
        fences = {job.fence for job in found}
        self._failing = {fence: retry for fence, retry in self._failing.items() if fence in fences}
        now = self._now()
        return [job for job in found if self._failing.get(job.fence, (now, 0.0))[0] <= now]

    async def _expire_all(self, lost: list[LostJob]) -> int:
        """Expire jobs: one commit per group, one for all jobs without a group, and one for each job of a run or that
        failed before. If a commit of several jobs fails, each of these jobs gets a separate commit, so that only the
        jobs that cause the failure stay locked."""
        groups: dict[tuple[str, str | None, str], list[LostJob]] = {}
        for job in lost:
            is_alone = job.kind in RUN_KINDS or job.fence in self._failing
            groups.setdefault((job.kind, job.run_id, job.id if is_alone else ""), []).append(job)
        moved, failed = 0, list[tuple[LostJob, Exception]]()
        for jobs in groups.values():
            moved += await self._expire(jobs, failed)
        if failed:
            job, error = failed[0]
            self._recovery.report_failures(job.id, f"{type(error).__name__}: {error}", len(failed))
        return moved

    async def _expire(self, jobs: list[LostJob], failed: list[tuple[LostJob, Exception]]) -> int:
        try:
            moved = await self._recovery.expire(jobs)
        except (TimeError, StorageFull):  # the store is unreachable or full, so the other jobs would fail, too
            raise
        except Exception as error:
            if len(jobs) > 1:
                return sum([await self._expire([job], failed) for job in jobs])
            failed.append((jobs[0], error))
            _, pause = self._failing.get(jobs[0].fence, (0.0, FIRST_RETRY_SECONDS / 2))
            pause = min(2 * pause, LONGEST_RETRY_SECONDS)
            self._failing[jobs[0].fence] = self._now() + pause, pause
            return 0
        return moved

    def _now(self) -> float:
        """Return the uptime in seconds. It includes time asleep, because a machine that slept may be the only
        one that renews leases."""
        return self._clock.uptime() / 1e6

    def _check_clocks(self, store: ClockCheck) -> None:
        """Suspend expiry after a jump of the store's clock. The local clock affects no lease. If it goes back, this is
        only reported, because log timestamps go back, too."""
        lease = self._recovery.settings.lease
        if store.jumped_ago < lease:
            jumped_at = self._now() - store.jumped_ago.total_seconds()
            self._hold_until = max(self._hold_until, jumped_at + lease.total_seconds())
            self._bots_until = max(self._bots_until, jumped_at + self._bot_grace)
        last, self._own_clock = self._own_clock, (self._clock.micros(), self._clock.monotonic())
        if last is not None and not store.steps:
            moved = self._own_clock[0] - last[0] - round((self._own_clock[1] - last[1]) * 1e6)
            if moved < -WORTH_REPORTING:
                self._store_clock.report_own_clock(-moved / 1e6)

    async def _nobody_extends(self) -> bool:
        settings = self._recovery.settings
        freshest = await self._recovery.freshest_lease()
        return freshest is None or freshest < settings.lease - 2 * settings.extend_every
