"""The words of every signal: level, event name and message. What a line looks like is left to `logs`.

Signals are known by the name of their class, so that this room needs none of the rooms that emit them; a test
holds that every signal of the tree is worded, and that every word in braces is one of its facts.
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

from shoal.base.signals import Signal


class Level(IntEnum):
    """How much a line matters; the numbers are those of the standard library."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


@dataclass(frozen=True, slots=True)
class Wording:
    """How a signal is told. `of` names a fact whose value chooses another one, as `how` does for a job."""

    level: Level
    message: str
    of: str | None = None
    choices: Mapping[str, tuple[Level, str]] = field(default_factory=dict)

    def chosen(self, facts: Mapping[str, Any]) -> tuple[Level, str]:
        value = facts.get(self.of) if self.of else None
        return self.choices.get(str(value), (self.level, self.message))

    def messages(self) -> list[str]:
        return [self.message, *(message for _, message in self.choices.values())]


@dataclass(frozen=True, slots=True)
class Line:
    """One thing to log, not yet cleaned."""

    level: Level
    event: str
    message: str
    facts: Mapping[str, Any]


WORDS: Mapping[str, Wording] = {
    "AnalysisAttempted": Wording(
        Level.INFO,
        "Processing analysis job",
        of="again",
        choices={"True": (Level.WARNING, "Retrying analysis job")},
    ),
    "AnalysisMoved": Wording(
        Level.INFO,
        "analysis {state}",
        of="reason",
        choices={
            "attempts_exhausted": (Level.ERROR, "All retry attempts exhausted, marking analysis as FAILED"),
            "poison": (Level.ERROR, "analysis failed, its workers were lost: {error}"),
            "stalled": (Level.ERROR, "analysis failed, it stalled: {error}"),
        },
    ),
    "BodyStoreStumbled": Wording(Level.WARNING, "body store stumbled, again in {retry_in_seconds:g} s: {error}"),
    "BotAsked": Wording(Level.DEBUG, "bot {bot_id} asks for jobs"),
    "BotPulled": Wording(Level.DEBUG, "bot {bot_id} pulled {jobs} jobs"),
    "CallerRefused": Wording(
        Level.WARNING,
        "a wrong credential came from {address}",
        of="waits",
        choices={"True": (Level.WARNING, "too many wrong credentials came from {address}: it has to wait")},
    ),
    "ChoreDone": Wording(Level.DEBUG, "{chore} {did}"),
    "ClockStepped": Wording(
        Level.WARNING,
        "the clock of the store was set {direction} by {seconds:.0f} s",
        of="direction",
        choices={
            "back": (
                Level.WARNING,
                "the clock of the store was set back by {seconds:.0f} s: leases, pauses and policies go on as before; "
                "until the clock has caught up, the times that are stored and shown are ahead of it",
            ),
            "forward": (
                Level.WARNING,
                "the clock of the store was set forward by {seconds:.0f} s: stored times follow it; "
                "no lease is given up before its holder had time to extend it",
            ),
        },
    ),
    "OwnClockSetBack": Wording(
        Level.WARNING,
        "the clock of this machine was set back by {seconds:.0f} s: the store's clock decides, so only the times "
        "of log lines and page records are off",
    ),
    "PolicyStuck": Wording(Level.WARNING, "policy {policy_id} cannot be run as it is, and is put off: {error}"),
    "JobsScheduled": Wording(Level.DEBUG, "{made} jobs made for policies, {skipped} skipped"),
    "ConnectionsCut": Wording(
        Level.WARNING,
        "too many connections without a credential, the last one from {peer}: those that wait longest are cut, {cut} so"
        " far, and {open} are open; SHOAL_MAX_CONNECTIONS and SHOAL_MAX_PEER_CONNECTIONS set the limits",
    ),
    "CrawlEnded": Wording(Level.DEBUG, "a child's crawl {state}"),
    "CrawlChanged": Wording(Level.INFO, "crawl changed"),
    "CrawlMoved": Wording(
        Level.INFO,
        "crawl {state}",
        of="state",
        choices={"failed": (Level.ERROR, "crawl failed: {reason}")},
    ),
    "ChoreFailed": Wording(Level.WARNING, "{chore} failed, trying again in {retry_in_seconds:g} s: {error}"),
    "FetchBlocked": Wording(Level.INFO, "not fetched, {code}: {detail}"),
    "JobEnqueued": Wording(Level.INFO, "{kind} job enqueued"),
    "JobLeased": Wording(Level.INFO, "{kind} job leased"),
    "JobsLeased": Wording(Level.DEBUG, "{count} {kind} jobs leased"),
    "JobsMoved": Wording(Level.DEBUG, "{count} {kind} jobs {how}"),
    "JobMoved": Wording(
        Level.INFO,
        "{kind} job {how}",
        of="how",
        choices={
            "done": (Level.INFO, "{kind} job done"),
            "retried": (Level.WARNING, "{kind} job failed and will be tried again: {error}"),
            "failed": (Level.ERROR, "{kind} job failed for good: {error}"),
            "expired": (Level.WARNING, "{kind} job lost its worker, the lease ran out, now {to}: {error}"),
            "crashed": (Level.WARNING, "{kind} job lost its worker, the process died, now {to}: {error}"),
            "released": (Level.INFO, "{kind} job handed back"),
            "cancelled": (Level.INFO, "{kind} job cancelled"),
        },
    ),
    "GroupEnded": Wording(Level.INFO, "job group {state}"),
    "PageBlocked": Wording(Level.INFO, "not fetched, {code}: {detail}"),
    "HookRan": Wording(Level.INFO, "hook {hook} read {calls} pages in {seconds:.3f} s; {failures} failed"),
    "ResultsTaken": Wording(Level.DEBUG, "{count} results of {kind} jobs taken"),
    "PagesSettled": Wording(Level.DEBUG, "pages settled"),
    "HoldsBegun": Wording(Level.DEBUG, "hosts held"),
    "HostHeld": Wording(
        Level.WARNING,
        "{origin} answered {status}: not asked for {seconds:.1f} s",
        of="why",
        choices={"retry_after": (Level.WARNING, "{origin} answered {status} and asks us to wait: {seconds:.1f} s")},
    ),
    "CourierStumbled": Wording(Level.WARNING, "webhook {webhook_id} could not be served: {error}"),
    "EventsNumbered": Wording(Level.DEBUG, "{count} events numbered, the oldest after {waited_seconds:.1f} s"),
    "DeliveriesSent": Wording(Level.DEBUG, "webhook {webhook_id}: {delivered} delivered, {failed} failed"),
    "WebhookDisabled": Wording(
        Level.WARNING,
        "webhook {webhook_id} is disabled: {reason}",
        of="reason",
        choices={
            "gone": (Level.WARNING, "webhook {webhook_id} is disabled: its server says that it is gone"),
            "failing": (Level.WARNING, "webhook {webhook_id} is disabled: nothing was delivered for five days"),
        },
    ),
    "CrawlDelayCut": Wording(
        Level.WARNING, "robots.txt of {origin} asks for a delay of {asked_seconds:g} s; {delay_seconds:g} s is kept"
    ),
    "RobotsOutOfReach": Wording(Level.WARNING, "store out of reach for the robots.txt of {origin}: {error}"),
    "RobotsRead": Wording(Level.DEBUG, "robots.txt {state}"),
    "SinkMissedEvents": Wording(
        Level.WARNING, "{sink} took no events for SHOAL_EVENTS_KEEP_MAX: those that it missed are removed"
    ),
    "SitemapSettled": Wording(
        Level.DEBUG,
        "sitemap {url} lists {listed} URLs",
        of="how",
        choices={
            "partly": (Level.WARNING, "sitemap {url} {problem}"),
            "failed": (Level.WARNING, "sitemap {url} {problem}"),
            "absent": (Level.DEBUG, "no sitemap at {url}"),
        },
    ),
    "UseNotNoted": Wording(Level.WARNING, "the store took no note of the use of a token: {error}"),
    "WakeDegraded": Wording(Level.WARNING, "notify degraded, idle workers only poll: {why}"),
    "WakeRestored": Wording(Level.INFO, "notifications come through again"),
    "WakeEarFailed": Wording(Level.WARNING, "a hint that a job waits was not taken in: {error}"),
    "WorkerStarted": Wording(Level.INFO, "Worker service starting"),
    "WorkerStopped": Wording(Level.INFO, "worker stopped"),
    "WorkerFailed": Wording(
        Level.ERROR, "worker failed at {where}, another takes its place in {retry_in_seconds:g} s: {error}"
    ),
    "ChildRefused": Wording(Level.WARNING, "child {pid} cannot begin: {error}"),
    "ChildGone": Wording(
        Level.WARNING,
        "a child could not be started: {how}",
        of="had_begun",
        choices={"True": (Level.WARNING, "a child that waited for work is gone: {how}")},
    ),
    "ChildLost": Wording(Level.WARNING, "child {pid} was lost with its job: {how}"),
    "StorageFilled": Wording(
        Level.WARNING,
        "the store is full, no jobs are taken until there is room: {error}",
        of="storage",
        choices={
            "bodies": (
                Level.WARNING,
                "the storage of kept bodies is full, no crawls are taken until there is room: {error}",
            )
        },
    ),
    "StorageFreed": Wording(
        Level.INFO,
        "the store has room again, after {full_seconds:.0f} s",
        of="storage",
        choices={"bodies": (Level.INFO, "the storage of kept bodies has room again, after {full_seconds:.0f} s")},
    ),
    "StoreOutOfReach": Wording(Level.WARNING, "store out of reach while {doing}: {error}"),
    "RequestServed": Wording(Level.DEBUG, "{method} {route} answered {status}"),
}


def worded(signal: Signal) -> Line:
    """The line a signal makes. One that nobody worded is still told, under its own name."""
    name = type(signal).__name__
    event = _event(name)
    facts = _facts(signal)
    wording = WORDS.get(name)
    if wording is None:
        return Line(Level.WARNING, event, event.replace("_", " "), facts)
    level, message = wording.chosen(facts)
    return Line(level, event, message.format_map(facts), _for_the_log(facts))


def level_of(signal: Signal) -> Level:
    """The most a signal can matter: lets a busy listener drop it before it is worded."""
    wording = WORDS.get(type(signal).__name__)
    if wording is None:
        return Level.WARNING
    return max([wording.level, *(level for level, _ in wording.choices.values())])


def _event(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _facts(signal: Signal) -> dict[str, Any]:
    values = ((each.name, getattr(signal, each.name)) for each in dataclasses.fields(signal))
    return {name: value.value if isinstance(value, Enum) else value for name, value in values}


def _for_the_log(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts under the names that log lines promise: a run is called by its kind, a holder is a node."""
    told = {name: value for name, value in facts.items() if value is not None}
    if run_id := told.pop("run_id", None):
        told["correlation_id"] = run_id
        told[f"{told.get('kind', 'run')}_id"] = run_id
    if holder := told.get("holder"):
        told["node_id"] = _node_of(holder)
    return told


def _node_of(holder: str) -> str:
    """Who works, without the process: a node, a machine, or the token of a bot."""
    first, *rest = holder.split("/")
    return rest[0] if first in ("local", "bot") and rest else first
