"""Check a server against the bot API: send valid and invalid requests as a bot, and report which rules the server
follows.

The check leases waiting jobs and reports them as failed, with an explanatory message. Do not run it against jobs that
matter.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import orjson

from shoal.base.errors import UsageError, from_problem
from shoal.bot.client import BotClient

PULL, BATCH = "/bot/v1/jobs/pull", "/bot/v1/results"
NEEDED = 3  # number of jobs
STATES = {"DONE", "FAILED", "PENDING"}
FIELDS = {"job_id", "url", "priority", "crawl_config", "rule_set", "lease"}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check: whether the server follows the rule, and if not, what was observed."""

    rule: str
    problem: str | None = None

    @property
    def holds(self) -> bool:
        return self.problem is None


class RuleBroken(Exception):
    """The server does not follow a rule; the message describes what was observed."""


class ConformanceRun:
    """One conformance run. `capability` selects the jobs that the run leases."""

    def __init__(self, wire: BotClient, capability: str = "http") -> None:
        self._wire = wire
        self._capability = capability
        self._jobs: list[dict[str, Any]] = []

    async def run(self) -> list[CheckResult]:
        """Check every rule in order, using the jobs pulled at the start."""
        await self._pull_all()
        rules: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("a pulled job has exactly the documented fields", self._shape),
            ("a pull with an unknown field is rejected with 422", self._unknown_field),
            ("a pull for 0, -1 or a billion jobs is rejected with 422", self._bad_max),
            ("a heartbeat renews the lease", self._beat),
            ("a heartbeat or result with a wrong epoch gets 409 lease_lost", self._other_epoch),
            ("a request for a job of a different bot gets 409 lease_lost", self._foreign),
            ("a result is accepted, and the response has the job's state in capitals", self._result),
            ("sending the same result twice returns the same response", self._repeat),
            ("a second, different result for a lease gets 409 lease_lost", self._late),
            ("a batch has a status for each item", self._batch),
            ("a request without a valid token is rejected", self._no_token),
        ]
        return [await self._judge(rule, check) for rule, check in rules]

    async def _judge(self, rule: str, check: Callable[[], Awaitable[None]]) -> CheckResult:
        try:
            await check()
        except RuleBroken as broken:
            return CheckResult(rule, str(broken))
        except (KeyError, TypeError, IndexError) as error:
            return CheckResult(rule, f"the response lacks {error}")
        return CheckResult(rule)

    async def _pull_all(self) -> None:
        """Pull as many jobs as needed; a host has one slot at a time, so this may take several pulls."""
        unanswered = 0
        while unanswered < 2:
            wanted = NEEDED - len(self._jobs)
            body = {"bot_id": "verify", "capabilities": [self._capability], "max": wanted, "wait_seconds": 2}
            status, answer = await self._ask(PULL, body)
            if status != 200:
                raise from_problem(answer if isinstance(answer, dict) else {}, status)
            self._jobs += answer["jobs"]
            unanswered = 0 if answer["jobs"] else unanswered + 1
            if len(self._jobs) >= NEEDED:
                return
        for job in self._jobs:
            await self._ask(_of(job, "result"), _failed(job))
        raise UsageError(
            f"{NEEDED} waiting jobs are needed, but only {len(self._jobs)} were found",
            f"create jobs that may fail, with `shoal jobs add URL…` (capability {self._capability})",
        )

    async def _shape(self) -> None:
        for job in self._jobs:
            _hold(set(job) == FIELDS, f"its fields are {sorted(job)}")
            _hold(set(job["lease"]) == {"epoch", "ttl_seconds"}, f"its lease is {job['lease']}")

    async def _unknown_field(self) -> None:
        await self._expect(PULL, {"bot_id": "verify", "tenant": "x"}, 422)

    async def _bad_max(self) -> None:
        for most in (0, -1, 10**9):
            await self._expect(PULL, {"bot_id": "verify", "max": most}, 422)

    async def _beat(self) -> None:
        answer = await self._expect(_of(self._jobs[0], "heartbeat"), {"epoch": _epoch(self._jobs[0])}, 200)
        _hold(answer["ttl_seconds"] > 0 and answer["cancelled"] is False, f"it returned {answer}")

    async def _other_epoch(self) -> None:
        job = self._jobs[0]
        for epoch in (_epoch(job) + 1, 0, -1, 2**63 - 1):
            await self._lost(_of(job, "heartbeat"), {"epoch": epoch})
            await self._lost(_of(job, "result"), {**_failed(job), "epoch": epoch})

    async def _foreign(self) -> None:
        own = await self._lost(_of(self._jobs[0], "heartbeat"), {"epoch": 0})
        other = await self._lost("/bot/v1/jobs/job_nobody/heartbeat", {"epoch": 0})
        _hold(set(own) == set(other), f"one has {sorted(own)}, the other {sorted(other)}")

    async def _result(self) -> None:
        answer = await self._expect(_of(self._jobs[0], "result"), _failed(self._jobs[0]), 200)
        _hold(answer["state"] in STATES, f"the state is {answer['state']}")

    async def _repeat(self) -> None:
        path, body = _of(self._jobs[1], "result"), _failed(self._jobs[1])
        first, again = await self._expect(path, body, 200), await self._expect(path, body, 200)
        _hold(first == again, f"first {first}, then {again}")

    async def _late(self) -> None:
        await self._lost(_of(self._jobs[1], "result"), {**_failed(self._jobs[1]), "data": "another"})

    async def _batch(self) -> None:
        good = {"job_id": self._jobs[2]["job_id"], **_failed(self._jobs[2])}
        bad = {**good, "job_id": "job_nobody"}
        answer = await self._expect(BATCH, {"results": [good, bad]}, 200)
        seen = [one["status"] for one in answer["results"]]
        _hold(seen == [200, 409], f"the statuses are {seen}")

    async def _no_token(self) -> None:
        if not self._wire.has_token:
            return
        body = orjson.dumps({"bot_id": "verify"})
        status = (await self._wire.send(PULL, body, token="shl_nobody")).status
        _hold(status == 401, f"it returned {status}")

    async def _lost(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        problem = await self._expect(path, body, 409)
        _hold(problem.get("code") == "lease_lost", f"the code is {problem.get('code')}")
        return problem

    async def _expect(self, path: str, body: dict[str, Any], wanted: int) -> dict[str, Any]:
        status, answer = await self._ask(path, body)
        _hold(status == wanted, f"{path} returned {status}: {answer}")
        _hold(isinstance(answer, dict), f"{path} returned {answer!r}")
        return dict(answer)

    async def _ask(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        response = await self._wire.send(path, orjson.dumps(body), timedelta(seconds=5))
        try:
            return response.status, orjson.loads(response.raw)
        except orjson.JSONDecodeError:
            raise RuleBroken(f"{path} returned something that is not JSON") from None


def _of(job: dict[str, Any], verb: str) -> str:
    return f"/bot/v1/jobs/{job['job_id']}/{verb}"


def _epoch(job: dict[str, Any]) -> int:
    return int(job["lease"]["epoch"])


def _failed(job: dict[str, Any]) -> dict[str, Any]:
    error = {"code": "verify", "message": "This job was used by `shoal bot verify`."}
    return {"epoch": _epoch(job), "status": "fail", "data": None, "meta": {"crawl_duration": 0.1, "error": error}}


def _hold(holds: bool, problem: str) -> None:
    if not holds:
        raise RuleBroken(problem)
