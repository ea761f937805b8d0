"""The log message of every signal: level, event name and text. The format of a line is left to `logs`.

Signals are identified by class name, so that this package does not import the packages that emit them. A test checks
that every signal has a message, and that every name in braces is one of its fields.
"""

import re
from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Any

from msgspec import Struct, field

from shoal.base.signals import Signal


class LogLevel(IntEnum):
    """The severity of a line; the numbers are those of the standard library."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


class LogMessage(Struct, frozen=True):
    """The message of a signal. `of` names a field whose value selects another message, as `how` does for a job."""

    level: LogLevel
    message: str
    of: str | None = None
    choices: Mapping[str, tuple[LogLevel, str]] = field(default_factory=dict)

    def chosen(self, facts: Mapping[str, Any]) -> tuple[LogLevel, str]:
        value = facts.get(self.of) if self.of else None
        return self.choices.get(str(value), (self.level, self.message))

    def messages(self) -> list[str]:
        return [self.message, *(message for _, message in self.choices.values())]


class LogLine(Struct, frozen=True):
    """A line to be logged, not sanitized yet."""

    level: LogLevel
    event: str
    message: str
    facts: Mapping[str, Any]


MESSAGES: Mapping[str, LogMessage] = {
    "FrontierOutOfReach": LogMessage(
        LogLevel.WARNING, "frontier of crawl {crawl_id} was not available during a state change of its job: {error}"
    ),
    "RedisWarned": LogMessage(LogLevel.WARNING, "{server}: {warning}"),
    "LanesDegraded": LogMessage(
        LogLevel.WARNING, "jobs do not go through {server} for now, workers lease them from the database: {why}"
    ),
    "LanesRestored": LogMessage(LogLevel.INFO, "jobs go through {server} again"),
    "AnalysisAttempted": LogMessage(
        LogLevel.INFO,
        "Processing analysis job",
        of="again",
        choices={"True": (LogLevel.WARNING, "Retrying analysis job")},
    ),
    "AnalysisMoved": LogMessage(
        LogLevel.INFO,
        "analysis {state}",
        of="reason",
        choices={
            "attempts_exhausted": (LogLevel.ERROR, "All retry attempts exhausted, marking analysis as FAILED"),
            "poison": (LogLevel.ERROR, "analysis failed, its workers were lost: {error}"),
            "stalled": (LogLevel.ERROR, "analysis failed, it stalled: {error}"),
        },
    ),
    "AnalyzerFailed": LogMessage(
        LogLevel.WARNING,
        "analyzer {analyzer} failed, the findings of the others are kept: {error}",
        of="optional",
        choices={"True": (LogLevel.WARNING, "optional analyzer {analyzer} failed: {error}")},
    ),
    "BodyStoreFailed": LogMessage(LogLevel.WARNING, "body store failed, retrying in {retry_in_seconds:g} s: {error}"),
    "BotAsked": LogMessage(LogLevel.DEBUG, "bot {bot_id} requested jobs"),
    "BotLeasesLost": LogMessage(LogLevel.INFO, "bot {bot_id} lost {count} leases: no result and no heartbeat in time"),
    "BotPulled": LogMessage(LogLevel.DEBUG, "bot {bot_id} pulled {jobs} jobs"),
    "BotReported": LogMessage(LogLevel.DEBUG, "bot {bot_id} reported: {counts}"),
    "BrowserStarted": LogMessage(
        LogLevel.INFO,
        "browser started in {seconds:.1f} s",
        of="sandbox",
        choices={
            "False": (
                LogLevel.WARNING,
                "browser started without its sandbox: run Shoal as a user other than root, on a system that allows "
                "user namespaces",
            )
        },
    ),
    "BrowserEnded": LogMessage(
        LogLevel.DEBUG,
        "browser {how} after {pages} pages",
        of="how",
        choices={"crashed": (LogLevel.WARNING, "browser crashed or hung after {pages} pages; it is replaced")},
    ),
    "BrowsersReaped": LogMessage(LogLevel.WARNING, "ended {count} browsers that a killed process had left behind"),
    "PageRendered": LogMessage(LogLevel.DEBUG, "page rendered in {seconds:.2f} s: {outcome}"),
    "RenderingImpossible": LogMessage(
        LogLevel.WARNING, "no browser is available, so pages that need one are stored without being rendered: {error}"
    ),
    "RenderingPutOff": LogMessage(LogLevel.WARNING, "page job was not rendered and waits {seconds:g} s: {error}"),
    "RendererRefused": LogMessage(
        LogLevel.WARNING, "pages wait for the renderer, trying again in {retry_in_seconds:g} s: {error}"
    ),
    "CallerRefused": LogMessage(
        LogLevel.WARNING,
        "invalid credential from {address}",
        of="waits",
        choices={"True": (LogLevel.WARNING, "too many invalid credentials from {address}; its requests are delayed")},
    ),
    "ChoreDone": LogMessage(LogLevel.DEBUG, "{chore} {did}"),
    "CommandMade": LogMessage(LogLevel.INFO, "command {command} for node {node_id}, given by {by}"),
    "CommandSent": LogMessage(LogLevel.DEBUG, "command {command} sent to node {node_id}"),
    "CommandEnded": LogMessage(
        LogLevel.INFO,
        "command {command_id} of node {node_id}: {state}",
        of="state",
        choices={
            "unsupported": (LogLevel.WARNING, "node {node_id} does not support command {command_id}: {detail}"),
            "failed": (LogLevel.WARNING, "node {node_id} could not apply command {command_id}: {detail}"),
            "expired": (LogLevel.WARNING, "command {command_id} expired before node {node_id} came back"),
        },
    ),
    "CommandApplied": LogMessage(
        LogLevel.INFO,
        "command {command} applied",
        of="result",
        choices={
            "unsupported": (LogLevel.WARNING, "command {command} is not supported: {detail}"),
            "failed": (LogLevel.WARNING, "command {command} could not be applied: {detail}"),
        },
    ),
    "ControlConnected": LogMessage(LogLevel.INFO, "registered with the controller at {controller}"),
    "ControlLost": LogMessage(
        LogLevel.WARNING,
        "no session with the controller at {controller}, connecting again in {retry_in_seconds:.1f} s: {error}",
    ),
    "NodeClockOff": LogMessage(LogLevel.WARNING, "the clock of node {node_id} is {ahead_seconds} s ahead of ours"),
    "SessionRefused": LogMessage(
        LogLevel.ERROR, "the session of node {node_id} is ended, because its status cannot be stored: {error}"
    ),
    "StatisticsRefused": LogMessage(
        LogLevel.ERROR, "the hourly statistics of {row} are dropped, because they cannot be stored: {error}"
    ),
    "StreamFailed": LogMessage(
        LogLevel.WARNING,
        "control stream from {address} failed, {type}: {error}",
        of="repeated",
        choices={"True": (LogLevel.DEBUG, "control stream from {address} failed, {type}: {error}")},
    ),
    "WorkerDisplaced": LogMessage(LogLevel.ERROR, "worker stops: {error}"),
    "FleetSeen": LogMessage(LogLevel.DEBUG, "{connected} nodes are connected"),
    "HeartbeatReceived": LogMessage(
        LogLevel.INFO, "heartbeat received", of="repeated", choices={"True": (LogLevel.DEBUG, "heartbeat received")}
    ),
    "JobsDispatched": LogMessage(LogLevel.DEBUG, "jobs dispatched: {targets}"),
    "JobsHeldBack": LogMessage(LogLevel.DEBUG, "{source} created no {kind} jobs: {why}"),
    "JobsReturned": LogMessage(LogLevel.DEBUG, "{count} jobs of private lanes went to the shared lane"),
    "LaneReturned": LogMessage(
        LogLevel.INFO, "{returned} jobs went to the shared lane, because node {node_id} leases nothing"
    ),
    "NodeDisconnected": LogMessage(
        LogLevel.WARNING, "session of node {node_id} broke off; it is lost unless it reconnects in time"
    ),
    "NodeLeft": LogMessage(LogLevel.INFO, "node {node_id} deregistered; {returned} jobs went to the shared lane"),
    "NodeLost": LogMessage(
        LogLevel.WARNING,
        "node {node_id} is lost after {silent_seconds:.0f} s without a heartbeat; {returned} jobs went to the shared "
        "lane",
    ),
    "NodeRegistered": LogMessage(
        LogLevel.INFO,
        "node registered",
        of="displaced",
        choices={"True": (LogLevel.WARNING, "node registered, and displaced another process with its id")},
    ),
    "BackPressureChanged": LogMessage(
        LogLevel.INFO,
        "back-pressure on {job_class} has ended",
        of="held",
        choices={"True": (LogLevel.WARNING, "back-pressure holds new {job_class} back: {why}")},
    ),
    "ClockStepped": LogMessage(
        LogLevel.WARNING,
        "the clock of the store was set {direction} by {seconds:.0f} s",
        of="direction",
        choices={
            "back": (
                LogLevel.WARNING,
                "the clock of the store was set back by {seconds:.0f} s: leases, holds and policies are not affected; "
                "stored times stay ahead of the clock until it has caught up",
            ),
            "forward": (
                LogLevel.WARNING,
                "the clock of the store was set forward by {seconds:.0f} s: stored times follow it; "
                "no lease expires before its holder had time to renew it",
            ),
        },
    ),
    "OwnClockSetBack": LogMessage(
        LogLevel.WARNING,
        "the clock of this machine was set back by {seconds:.0f} s: the store's clock is used, so only the times "
        "of log lines and page records are wrong",
    ),
    "PolicyStuck": LogMessage(LogLevel.WARNING, "policy {policy_id} cannot run and is postponed: {error}"),
    "JobsScheduled": LogMessage(LogLevel.DEBUG, "created {made} jobs for policies, skipped {skipped}"),
    "ConnectionsCut": LogMessage(
        LogLevel.WARNING,
        "too many unauthenticated connections, the latest from {peer}; the longest idle are closed ({cut} so far, "
        "{open} open); the limits are SHOAL_MAX_CONNECTIONS and SHOAL_MAX_PEER_CONNECTIONS",
    ),
    "NodesNotForwarded": LogMessage(
        LogLevel.WARNING,
        "connections to the gRPC port are closed, the latest from {peer}, because gRPC cannot be reached ({closed} so "
        "far): {error}",
    ),
    "CrawlEnded": LogMessage(LogLevel.DEBUG, "a child's crawl {state}"),
    "CrawlChanged": LogMessage(LogLevel.INFO, "crawl changed"),
    "CrawlMoved": LogMessage(
        LogLevel.INFO,
        "crawl {state}",
        of="state",
        choices={"failed": (LogLevel.ERROR, "crawl failed: {reason}")},
    ),
    "ChoreFailed": LogMessage(LogLevel.WARNING, "{chore} failed, retrying in {retry_in_seconds:g} s: {error}"),
    "FetchBlocked": LogMessage(LogLevel.INFO, "not fetched, {code}: {detail}"),
    "JobEnqueued": LogMessage(LogLevel.INFO, "{kind} job enqueued"),
    "JobLeased": LogMessage(LogLevel.INFO, "{kind} job leased"),
    "JobsLeased": LogMessage(LogLevel.DEBUG, "{count} {kind} jobs leased"),
    "JobsMoved": LogMessage(LogLevel.DEBUG, "{count} {kind} jobs {how}"),
    "JobMoved": LogMessage(
        LogLevel.INFO,
        "{kind} job {how}",
        of="how",
        choices={
            "done": (LogLevel.INFO, "{kind} job done"),
            "retried": (LogLevel.WARNING, "{kind} job failed, will be retried: {error}"),
            "failed": (LogLevel.ERROR, "{kind} job failed permanently: {error}"),
            "expired": (LogLevel.WARNING, "{kind} job lost its worker (lease expired), now {to}: {error}"),
            "crashed": (LogLevel.WARNING, "{kind} job lost its worker (process died), now {to}: {error}"),
            "released": (LogLevel.INFO, "{kind} job released"),
            "cancelled": (LogLevel.INFO, "{kind} job cancelled"),
        },
    ),
    "GroupEnded": LogMessage(LogLevel.INFO, "job group {state}"),
    "PageBlocked": LogMessage(LogLevel.INFO, "not fetched, {code}: {detail}"),
    "HookRan": LogMessage(
        LogLevel.INFO, "hook {hook} was called with {calls} pages, {failures} of them failed, and took {seconds:.3f} s"
    ),
    "ResultsTaken": LogMessage(LogLevel.DEBUG, "accepted {count} results of {kind} jobs"),
    "PagesSettled": LogMessage(LogLevel.DEBUG, "pages settled"),
    "HoldsBegun": LogMessage(LogLevel.DEBUG, "hosts put on hold"),
    "HostHeld": LogMessage(
        LogLevel.WARNING,
        "{origin} answered {status}: no requests for {seconds:.1f} s",
        of="why",
        choices={
            "retry_after": (
                LogLevel.WARNING,
                "{origin} answered {status} with Retry-After: no requests for {seconds:.1f} s",
            )
        },
    ),
    "CommitStatusWanted": LogMessage(LogLevel.DEBUG, "commit status of analysis {run_id} changed"),
    "CommitStatusPublished": LogMessage(LogLevel.INFO, "commit status {state} published for {repo} at {sha}"),
    "CommitStatusFailed": LogMessage(
        LogLevel.WARNING, "commit status {state} could not be published for {repo} at {sha}: {error}"
    ),
    "CourierFailed": LogMessage(LogLevel.WARNING, "delivery to webhook {webhook_id} failed: {error}"),
    "EventsNumbered": LogMessage(LogLevel.DEBUG, "{count} events numbered, the oldest after {waited_seconds:.1f} s"),
    "DeliveriesSent": LogMessage(LogLevel.DEBUG, "webhook {webhook_id}: {delivered} delivered, {failed} failed"),
    "WebhookDisabled": LogMessage(
        LogLevel.WARNING,
        "webhook {webhook_id} is disabled: {reason}",
        of="reason",
        choices={
            "gone": (LogLevel.WARNING, "webhook {webhook_id} is disabled: its endpoint returned 410 (gone)"),
            "failing": (LogLevel.WARNING, "webhook {webhook_id} is disabled: nothing was delivered for five days"),
        },
    ),
    "CrawlDelayCut": LogMessage(
        LogLevel.WARNING,
        "robots.txt of {origin} asks for a Crawl-delay of {asked_seconds:g} s; limited to {delay_seconds:g} s",
    ),
    "CrawlInterrupted": LogMessage(
        LogLevel.WARNING, "crawl {crawl_id} is interrupted and starts over as soon as it can: {error}"
    ),
    "RobotsOutOfReach": LogMessage(LogLevel.WARNING, "store not available for the robots.txt of {origin}: {error}"),
    "RobotsRead": LogMessage(LogLevel.DEBUG, "robots.txt {state}"),
    "SinkMissedEvents": LogMessage(
        LogLevel.WARNING, "{sink} accepted no events for SHOAL_EVENTS_KEEP_MAX: the events it missed were removed"
    ),
    "SitemapSettled": LogMessage(
        LogLevel.DEBUG,
        "sitemap {url} lists {listed} URLs",
        of="how",
        choices={
            "partly": (LogLevel.WARNING, "sitemap {url} {problem}"),
            "failed": (LogLevel.WARNING, "sitemap {url} {problem}"),
            "absent": (LogLevel.DEBUG, "no sitemap at {url}"),
        },
    ),
    "TokenUseNotRecorded": LogMessage(LogLevel.WARNING, "the last use of a token could not be recorded: {error}"),
    "WakeDegraded": LogMessage(LogLevel.WARNING, "notify degraded, idle workers only poll: {why}"),
    "WakeRestored": LogMessage(LogLevel.INFO, "notifications work again"),
    "WakeListenerFailed": LogMessage(LogLevel.WARNING, "a wake-up notification could not be handled: {error}"),
    "WorkerStarted": LogMessage(LogLevel.INFO, "Worker service starting"),
    "WorkerStopped": LogMessage(LogLevel.INFO, "worker stopped"),
    "WorkerFailed": LogMessage(
        LogLevel.ERROR, "worker failed at {where}, restarting in {retry_in_seconds:g} s: {error}"
    ),
    "ChildRefused": LogMessage(LogLevel.WARNING, "child {pid} cannot start: {error}"),
    "ChildGone": LogMessage(
        LogLevel.WARNING,
        "a child could not be started: {how}",
        of="had_begun",
        choices={"True": (LogLevel.WARNING, "an idle child exited: {how}")},
    ),
    "ChildLost": LogMessage(LogLevel.WARNING, "child {pid} was lost with its job: {how}"),
    "StorageFilled": LogMessage(
        LogLevel.WARNING,
        "the store is full, no jobs are leased until there is space: {error}",
        of="storage",
        choices={
            "bodies": (
                LogLevel.WARNING,
                "the body store is full, no crawls are leased until there is space: {error}",
            )
        },
    ),
    "StorageFreed": LogMessage(
        LogLevel.INFO,
        "the store has space again, after {full_seconds:.0f} s",
        of="storage",
        choices={"bodies": (LogLevel.INFO, "the body store has space again, after {full_seconds:.0f} s")},
    ),
    "StoreOutOfReach": LogMessage(LogLevel.WARNING, "store not available while {doing}: {error}"),
    "RequestServed": LogMessage(LogLevel.DEBUG, "{method} {route} returned {status}"),
}


def log_line(signal: Signal) -> LogLine:
    """Return the log line of a signal. A signal without a message is still logged, under its own name."""
    name = type(signal).__name__
    event = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    values = ((field, getattr(signal, field)) for field in signal.__struct_fields__)
    facts = {field: value.value if isinstance(value, Enum) else value for field, value in values}
    wording = MESSAGES.get(name)
    if wording is None:
        return LogLine(LogLevel.WARNING, event, event.replace("_", " "), facts)
    level, message = wording.chosen(facts)
    return LogLine(level, event, message.format_map(facts), _for_the_log(facts))


def level_of(signal: Signal) -> LogLevel:
    """Return the highest level a signal can have, so that a busy listener can drop it before it is formatted."""
    wording = MESSAGES.get(type(signal).__name__)
    if wording is None:
        return LogLevel.WARNING
    return max([wording.level, *(level for level, _ in wording.choices.values())])


def _for_the_log(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts under the documented log field names: a run is named by its kind, a holder is a node."""
    fields = {name: value for name, value in facts.items() if value is not None}
    if run_id := fields.pop("run_id", None):
        fields["correlation_id"] = run_id
        fields[f"{fields.get('kind', 'run')}_id"] = run_id
    if job_ids := fields.pop("job_ids", None):  # a batch may have thousands
        fields |= {"job_id": job_ids[0], "count": len(job_ids)}
    if holder := fields.get("holder"):
        fields["node_id"] = _node_of(holder)
    return fields


def _node_of(holder: str) -> str:
    """Return the holder without its process: a node, a machine, or the token of a bot."""
    first, *rest = holder.split("/")
    return rest[0] if first in ("local", "bot") and rest else first
