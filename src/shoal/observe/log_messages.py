"""The log message of every signal: level, event name and text. The module `logs` formats the lines.

Signals are identified by class name, so that this package does not import the packages that emit them. A test checks
that every signal has a message, and that every name in braces is one of its fields.
"""

import re
from collections.abc import Mapping
from enum import Enum, IntEnum
from functools import partial
from typing import Any

from msgspec import Struct, field

from shoal.base.signals import Signal


class LogLevel(IntEnum):
    """The severity of a log line, with the numbers of the standard library."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


class LogMessage(Struct, frozen=True):
    """The message of a signal. `of` is the name of a field whose value selects one of `choices`, such as `how` for a
    job."""

    level: LogLevel
    message: str
    of: str | None = None
    choices: Mapping[str, "LogMessage"] = field(default_factory=dict)

    def chosen(self, facts: Mapping[str, Any]) -> "LogMessage":
        return self.choices.get(str(facts.get(self.of)), self) if self.of else self

    def messages(self) -> list[str]:
        return [self.message, *(one.message for one in self.choices.values())]


class LogLine(Struct, frozen=True):
    """A log line that has not been sanitized yet."""

    level: LogLevel
    event: str
    message: str
    facts: Mapping[str, Any]


debug = partial(LogMessage, LogLevel.DEBUG)
info = partial(LogMessage, LogLevel.INFO)
warning = partial(LogMessage, LogLevel.WARNING)
error = partial(LogMessage, LogLevel.ERROR)

MESSAGES: Mapping[str, LogMessage] = {
    "FrontierOutOfReach": warning(
        "frontier of crawl {crawl_id} was not available during a state change of its job: {error}"
    ),
    "RedisWarned": warning("{server}: {warning}"),
    "LanesDegraded": warning(
        "{server} cannot be used for jobs at present, so workers lease jobs from the database: {why}"
    ),
    "LanesRestored": info("{server} is used for jobs again"),
    "AnalysisAttempted": info(
        "Processing analysis job", of="again", choices={"True": warning("Retrying analysis job")}
    ),
    "AnalysisMoved": info(
        "analysis {state}",
        of="reason",
        choices={
            "attempts_exhausted": error("All retry attempts exhausted, marking analysis as FAILED"),
            "poison": error("analysis failed, its workers were lost: {error}"),
            "stalled": error("analysis failed, it stalled: {error}"),
        },
    ),
    "AnalyzerFailed": warning(
        "analyzer {analyzer} failed, the findings of the other analyzers are kept: {error}",
        of="optional",
        choices={"True": warning("optional analyzer {analyzer} failed: {error}")},
    ),
    "BodyStoreFailed": warning("body store failed, retrying in {retry_in_seconds:g} s: {error}"),
    "BotAsked": debug("bot {bot_id} requested jobs"),
    "BotLeasesLost": info("{count} leases of bot {bot_id} expired: it sent no result or heartbeat in time"),
    "BotPulled": debug("bot {bot_id} pulled {jobs} jobs"),
    "BotReported": debug("bot {bot_id} reported: {counts}"),
    "BrowserStarted": info(
        "browser started in {seconds:.1f} s",
        of="sandbox",
        choices={
            "False": warning(
                "browser started without its sandbox: run Shoal as a user other than root, on a system that allows "
                "user namespaces"
            )
        },
    ),
    "BrowserEnded": debug(
        "browser {how} after {pages} pages",
        of="how",
        choices={"crashed": warning("browser crashed or hung after {pages} pages; it is replaced")},
    ),
    "BrowsersReaped": warning("ended {count} browsers that a killed process had left behind"),
    "PageRendered": debug("page rendered in {seconds:.2f} s: {outcome}"),
    "RenderingImpossible": warning("no browser is available, so pages that need one are stored unrendered: {error}"),
    "RenderingPutOff": warning("page job delayed for {seconds:g} s, because its page could not be rendered: {error}"),
    "RendererRefused": warning("pages wait for the renderer, trying again in {retry_in_seconds:g} s: {error}"),
    "CallerRefused": warning(
        "invalid credential from {address}",
        of="waits",
        choices={"True": warning("too many invalid credentials from {address}; its requests are delayed")},
    ),
    "ChoreDone": debug("{chore} {did}"),
    "CommandMade": info("command {command} for node {node_id} was stored, requested by {by}"),
    "CommandSent": debug("command {command} sent to node {node_id}"),
    "CommandEnded": info(
        "command {command_id} of node {node_id}: {state}",
        of="state",
        choices={
            "unsupported": warning("node {node_id} does not support command {command_id}: {detail}"),
            "failed": warning("node {node_id} could not apply command {command_id}: {detail}"),
            "expired": warning("command {command_id} expired before node {node_id} came back"),
        },
    ),
    "CommandApplied": info(
        "command {command} applied",
        of="result",
        choices={
            "unsupported": warning("command {command} is not supported: {detail}"),
            "failed": warning("command {command} could not be applied: {detail}"),
        },
    ),
    "ControlConnected": info("registered with the controller at {controller}"),
    "ControlLost": warning(
        "no session with the controller at {controller}, connecting again in {retry_in_seconds:.1f} s: {error}"
    ),
    "NodeClockOff": warning("the clock of node {node_id} is {ahead_seconds} s ahead of this machine's clock"),
    "SessionRefused": error("the session of node {node_id} is ended, because its status cannot be stored: {error}"),
    "StatisticsRefused": error("the hourly statistics of {row} are dropped, because they cannot be stored: {error}"),
    "StreamFailed": warning(
        "control stream from {address} failed, {type}: {error}",
        of="repeated",
        choices={"True": debug("control stream from {address} failed, {type}: {error}")},
    ),
    "WorkerDisplaced": error("worker stops: {error}"),
    "FleetSeen": debug("{connected} nodes are connected"),
    "HeartbeatReceived": info("heartbeat received", of="repeated", choices={"True": debug("heartbeat received")}),
    "JobsDispatched": debug("jobs dispatched: {targets}"),
    "JobsHeldBack": debug("{source} created no {kind} jobs: {why}"),
    "JobsReturned": debug("{count} jobs were moved from private lanes to the shared lane"),
    "LaneReturned": info("{returned} jobs were moved to the shared lane, because node {node_id} does not lease jobs"),
    "NodeDisconnected": warning(
        "session of node {node_id} was interrupted; the node is lost unless it reconnects in time"
    ),
    "NodeLeft": info("node {node_id} deregistered; {returned} jobs were moved to the shared lane"),
    "NodeLost": warning(
        "node {node_id} is lost after {silent_seconds:.0f} s without a heartbeat; {returned} jobs were moved to the "
        "shared lane"
    ),
    "NodeRegistered": info(
        "node registered",
        of="displaced",
        choices={"True": warning("node registered, and displaced a different process with the same id")},
    ),
    "BackPressureChanged": info(
        "back-pressure on {job_class} has ended",
        of="held",
        choices={"True": warning("back-pressure delays new {job_class}: {why}")},
    ),
    "ClockStepped": warning(
        "the clock of the store was set {direction} by {seconds:.0f} s",
        of="direction",
        choices={
            "back": warning(
                "the clock of the store was set back by {seconds:.0f} s: leases, holds and policies are not affected; "
                "stored times stay ahead of the clock until it has caught up"
            ),
            "forward": warning(
                "the clock of the store was set forward by {seconds:.0f} s: stored times follow the clock; no lease "
                "expires before its holder had time to renew the lease"
            ),
        },
    ),
    "OwnClockSetBack": warning(
        "the clock of this machine was set back by {seconds:.0f} s: Shoal uses the store's clock, so only the times "
        "of log lines and page records are wrong"
    ),
    "PolicyStuck": warning("policy {policy_id} cannot run and is postponed: {error}"),
    "JobsScheduled": debug("created {made} jobs for policies, skipped {skipped}"),
    "ConnectionsCut": warning(
        "too many unauthenticated connections, the latest from {peer}; those that have been idle longest are closed "
        "({cut} so far, {open} open); the limits are SHOAL_MAX_CONNECTIONS and SHOAL_MAX_PEER_CONNECTIONS"
    ),
    "NodesNotForwarded": warning(
        "connections to the gRPC port are closed, the latest from {peer}, because gRPC cannot be reached ({closed} so "
        "far): {error}"
    ),
    "CrawlEnded": debug("a child's crawl {state}"),
    "CrawlChanged": info("crawl changed"),
    "CrawlMoved": info("crawl {state}", of="state", choices={"failed": error("crawl failed: {reason}")}),
    "ChoreFailed": warning("{chore} failed, retrying in {retry_in_seconds:g} s: {error}"),
    "ExpiryFailed": warning(
        "job {job_id} cannot be returned to the queue after its lease expired ({count} such jobs), "
        "retrying later: {error}"
    ),
    "FetchBlocked": info("not fetched, {code}: {detail}"),
    "JobEnqueued": info("{kind} job enqueued"),
    "JobLeased": info("{kind} job leased"),
    "JobsLeased": debug("{count} {kind} jobs leased"),
    "JobsMoved": debug("{count} {kind} jobs {how}"),
    "JobMoved": info(
        "{kind} job {how}",
        of="how",
        choices={
            "done": info("{kind} job done"),
            "retried": warning("{kind} job failed and will be retried: {error}"),
            "failed": error("{kind} job failed permanently: {error}"),
            "expired": warning("{kind} job lost its worker (lease expired), now {to}: {error}"),
            "crashed": warning("{kind} job lost its worker (process died), now {to}: {error}"),
            "released": info("{kind} job released"),
            "cancelled": info("{kind} job cancelled"),
        },
    ),
    "GroupEnded": info("job group {state}"),
    "ResultRefused": error("the store refused the result of a page job: {error}"),
    "PageBlocked": info("not fetched, {code}: {detail}"),
    "HookRan": info("hook {hook} was called with {calls} pages in {seconds:.3f} s; {failures} calls failed"),
    "ResultsTaken": debug("accepted {count} results of {kind} jobs"),
    "PagesSettled": debug("pages settled"),
    "HoldsBegun": debug("hosts put on hold"),
    "HostHeld": warning(
        "{origin} answered {status}: no requests for {seconds:.1f} s",
        of="why",
        choices={
            "retry_after": warning("{origin} answered {status} with Retry-After: no requests for {seconds:.1f} s")
        },
    ),
    "CommitStatusWanted": debug("commit status of analysis {run_id} changed"),
    "CommitStatusPublished": info("commit status {state} published for {repo} at {sha}"),
    "CommitStatusFailed": warning("commit status {state} could not be published for {repo} at {sha}: {error}"),
    "CourierFailed": warning("delivery to webhook {webhook_id} failed: {error}"),
    "EventsNumbered": debug("{count} events numbered, the oldest after {waited_seconds:.1f} s"),
    "DeliveriesSent": debug("webhook {webhook_id}: {delivered} delivered, {failed} failed"),
    "WebhookDisabled": warning(
        "webhook {webhook_id} is disabled: {reason}",
        of="reason",
        choices={
            "gone": warning("webhook {webhook_id} is disabled: its endpoint returned 410 (gone)"),
            "failing": warning("webhook {webhook_id} is disabled: nothing was delivered for five days"),
        },
    ),
    "CrawlDelayCut": warning(
        "robots.txt of {origin} asks for a Crawl-delay of {asked_seconds:g} s; limited to {delay_seconds:g} s"
    ),
    "CrawlInterrupted": warning("crawl {crawl_id} is interrupted and will be restarted as soon as possible: {error}"),
    "RobotsOutOfReach": warning("store not available for the robots.txt of {origin}: {error}"),
    "RobotsRead": debug("robots.txt {state}"),
    "SinkMissedEvents": warning("{sink} accepted no events for SHOAL_EVENTS_KEEP_MAX: the missed events were removed"),
    "SitemapSettled": debug(
        "sitemap {url} lists {listed} URLs",
        of="how",
        choices={
            "partly": warning("sitemap {url} {problem}"),
            "failed": warning("sitemap {url} {problem}"),
            "absent": debug("no sitemap at {url}"),
        },
    ),
    "TokenUseNotRecorded": warning("the last use of a token could not be recorded: {error}"),
    "WakeDegraded": warning("notify degraded, idle workers only poll: {why}"),
    "WakeRestored": info("notifications work again"),
    "WakeListenerFailed": warning("a wake-up notification could not be handled: {error}"),
    "WorkerStarted": info("Worker service starting"),
    "WorkerStopped": info("worker stopped"),
    "WorkerFailed": error("worker failed at {where}, restarting in {retry_in_seconds:g} s: {error}"),
    "ChildRefused": warning("child {pid} cannot start: {error}"),
    "ChildGone": warning(
        "a child could not be started: {how}", of="had_begun", choices={"True": warning("an idle child exited: {how}")}
    ),
    "ChildLost": warning("child {pid} was lost with its job: {how}"),
    "StorageFilled": warning(
        "the store is full, so no jobs are leased until there is space: {error}",
        of="storage",
        choices={"bodies": warning("the body store is full, so no crawls are leased until there is space: {error}")},
    ),
    "StorageFreed": info(
        "the store has space again, after {full_seconds:.0f} s",
        of="storage",
        choices={"bodies": info("the body store has space again, after {full_seconds:.0f} s")},
    ),
    "StoreOutOfReach": warning("store not available while {doing}: {error}"),
    "RequestServed": debug("{method} {route} returned {status}"),
}


def log_line(signal: Signal) -> LogLine:
    """Return the log line of a signal. If a signal has no message, its name is the message."""
    name = type(signal).__name__
    event = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    values = ((field, getattr(signal, field)) for field in signal.__struct_fields__)
    facts = {field: value.value if isinstance(value, Enum) else value for field, value in values}
    wording = MESSAGES.get(name)
    if wording is None:
        return LogLine(LogLevel.WARNING, event, event.replace("_", " "), facts)
    chosen = wording.chosen(facts)
    return LogLine(chosen.level, event, chosen.message.format_map(facts), _for_the_log(facts))


def level_of(signal: Signal) -> LogLevel:
    """Return the highest log level of a signal, so that a busy listener can drop the signal before it is formatted."""
    wording = MESSAGES.get(type(signal).__name__)
    if wording is None:
        return LogLevel.WARNING
    return max([wording.level, *(one.level for one in wording.choices.values())])


def _for_the_log(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values under the documented log field names: the name of a run id depends on the kind of run, and the
    lease holder becomes a node id."""
    fields = {name: value for name, value in facts.items() if value is not None}
    if run_id := fields.pop("run_id", None):
        fields["correlation_id"] = run_id
        fields[f"{fields.get('kind', 'run')}_id"] = run_id
    # only the first id and the number are logged: a batch may have thousands
    if job_ids := fields.pop("job_ids", None):
        fields |= {"job_id": job_ids[0], "count": len(job_ids)}
    if holder := fields.get("holder"):  # the holder without its process id: a node, a machine, or a bot token
        first, *rest = holder.split("/")
        fields["node_id"] = rest[0] if first in ("local", "bot") and rest else first
    return fields
