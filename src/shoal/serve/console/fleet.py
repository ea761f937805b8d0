"""The fleet pages: nodes with their rates and commands, and bots."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from starlette.responses import Response

from shoal.access.token import TokenScope
from shoal.access.tokens import Tokens
from shoal.base.clock import Clock
from shoal.base.errors import InvalidInput
from shoal.base.service import PassResult
from shoal.base.text import message
from shoal.fleet import node as health
from shoal.fleet.explain import NodeExplainer
from shoal.fleet.node import CommandName, CommandRequest, Node
from shoal.fleet.nodes import Nodes
from shoal.fleet.states import NodeState
from shoal.fleet.view import PressureStatus
from shoal.observe.stats import PAGES, BotActivity, HourlyStatsReader
from shoal.serve.authentication import caller_of
from shoal.serve.console.charts import Part
from shoal.serve.console.exports import at_once, listed
from shoal.serve.console.feed import LivePage
from shoal.serve.console.format import Formats, Language
from shoal.serve.console.forms import AnyQuery, ConsoleForm, View, form_endpoint, page_endpoint, read_form
from shoal.serve.console.shell import Shell, carry_out
from shoal.serve.endpoint import EndpointRequest, Nothing, always
from shoal.serve.resources import node as resource
from shoal.serve.resources.bot import BotSeen
from shoal.serve.resources.node import VERBS, given_to_all

KEPT: Final = 60  # number of samples per node: five minutes


class NodeRateSampler:
    """Keeps in memory the tasks per second that each node finished in the last minutes."""

    name = "node_rate"

    def __init__(self, nodes: Nodes, clock: Clock) -> None:
        self._nodes = nodes
        self._clock = clock
        self._before: dict[str, tuple[int, int]] = {}  # session and number of finished tasks of each node
        self._sampled_at = 0.0
        self._rates: dict[str, deque[tuple[float, float]]] = {}  # rate and duration of each sample

    async def run_once(self) -> PassResult:
        nodes = await self._nodes.list_all()
        counts = {str(node.id): (node.session_epoch, node.status.total_processed) for node in nodes}
        now, rates = self._clock.monotonic(), dict[str, deque[tuple[float, float]]]()
        seconds = now - self._sampled_at
        for node_id, (session, count) in counts.items():
            rates[node_id] = self._rates.get(node_id) or deque(maxlen=KEPT)
            session_before, count_before = self._before.get(node_id, (None, 0))
            # After a new session, there is no sample: the count includes the tasks of the time without a session, or a
            # new process has started from zero.
            if session == session_before and seconds > 0:
                rates[node_id].append((max(0, count - count_before) / seconds, seconds))
        self._before, self._sampled_at, self._rates = counts, now, rates
        return PassResult()

    def of(self, node_id: str) -> list[float]:
        """Return the rates of a node, oldest first; the list is empty until two samples have been taken."""
        return [rate for rate, _ in self._rates.get(node_id, ())]

    def seconds_of(self, node_id: str) -> float:
        """Return the time span that the rates of a node cover."""
        return sum(seconds for _, seconds in self._rates.get(node_id, ()))


PARTS: Final = {
    "success": (message("Success"), health.SUCCESS, "p1"),
    "load": (message("Free slots"), health.LOAD, "p2"),
    "latency": (message("Speed"), health.LATENCY, "p3"),
    "depth": (message("Short lane"), health.DEPTH, "p4"),
}
CLASS_NAMES: Final = {"runs": message("Crawls and analyses"), "pages": message("Page jobs")}
GIVEN_ALL: Final = (message("The command was sent to {count} node."), message("The command was sent to {count} nodes."))
NUMBERS: Final = ("max_concurrency", "page_slots")


class FleetPage(LivePage):
    """`/fleet`. `pressures` returns the back-pressure on each class of jobs, as known to this process."""

    paths = ("/fleet",)
    regions = ("fleet",)
    template, section = "fleet.html", "fleet"

    def __init__(
        self, shell: Shell, nodes: Nodes, rates: NodeRateSampler, pressures: Callable[[], Sequence[PressureStatus]]
    ) -> None:
        self._shell = shell
        self._nodes = nodes
        self._rates = rates
        self._pressures = pressures

    @page_endpoint("/fleet", "Show the fleet.")
    async def show_fleet(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        return await self.shown(request)

    async def context(self, view: View, params: Mapping[str, str]) -> dict[str, Any]:
        nodes, formats = await self._nodes.list_all(), self._shell.formats(view)
        healthy = [node for node in nodes if node.takes_jobs]
        return {
            "nodes": [(node, score_parts(node, formats), self._rates.of(node.id)) for node in nodes],
            "healthy": len(healthy),
            "lost": sum(node.state is NodeState.LOST for node in nodes),
            "runs": (
                sum(one.status.active_tasks for one in healthy),
                sum(one.status.max_concurrency for one in healthy),
            ),
            "pages": (sum(one.status.active_pages for one in healthy), sum(one.status.page_slots for one in healthy)),
            "waiting": sum(node.depth for node in nodes),
            "pressures": [(view.language(CLASS_NAMES[one.job_class]), one) for one in self._pressures()],
            "commands": {name: given_to_all(name) for name in ("pause", "resume", "drain")},
            "is_live": True,
        }

    @page_endpoint("/fleet.{format}", "Download the nodes.", expensive=always)
    async def export_nodes(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        rows = [resource.Node.of(node) for node in await self._nodes.list_all()]
        return listed(request, "nodes", resource.Node, at_once(*rows))

    @form_endpoint("/fleet/commands", "Send the same command to every node.")
    async def command_fleet(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        form, language = await read_form(request.http), self._shell.view(request.http).language
        wanted = command_of(form)
        if not form.is_confirmed:
            return self._shell.confirm(request.http, form, given_to_all(wanted.command))

        async def give() -> str:
            by = caller_of(request.http).who
            return language.plural(*GIVEN_ALL, len(await self._nodes.broadcast(wanted, by, audit=request.audit)))

        return await carry_out(self._shell, "/fleet", give)


class NodePage(LivePage):
    """`/fleet/{node_id}`."""

    paths = ("/fleet/{node_id}",)
    regions = ("node",)
    template, section = "node.html", "fleet"

    def __init__(self, shell: Shell, nodes: Nodes, rates: NodeRateSampler, explainer: NodeExplainer) -> None:
        self._shell = shell
        self._nodes = nodes
        self._rates = rates
        self._explainer = explainer

    @page_endpoint("/fleet/{node_id}", "Show a node.")
    async def show_node(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        return await self.shown(request)

    async def context(self, view: View, params: Mapping[str, str]) -> dict[str, Any]:
        found = await self._explainer.explain(params["node_id"])
        node = found.node
        formats, weighted = self._shell.formats(view), node.health.weighted
        return {
            "node": node,
            "found": found,
            "sentence": formats.sentence(found.sentence),
            "score": score_parts(node, formats),
            "parts": [
                (view.language(title), getattr(node.health, name), weight, weighted[name])
                for name, (title, weight, _) in PARTS.items()
            ],
            "rates": self._rates.of(node.id),
            "seconds": self._rates.seconds_of(node.id),
            "commands": [
                (one, view.language(VERBS[one.command].label)) for one in await self._nodes.commands_of(node.id)
            ],
            "is_live": True,
        }

    @page_endpoint("/fleet/{node_id}/commands.{format}", "Download the commands of a node.", expensive=always)
    async def export_commands(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        node_id = (await self._nodes.get(request.path_param("node_id"))).id
        rows = [resource.NodeCommand.of(one) for one in await self._nodes.commands_of(node_id)]
        return listed(request, f"{node_id}.commands", resource.NodeCommand, at_once(*rows))

    @form_endpoint("/fleet/{node_id}/commands", "Send a command to a node.")
    async def command_one(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        form, node_id = await read_form(request.http), request.path_param("node_id")
        language, wanted = self._shell.view(request.http).language, command_of(form)
        verb = VERBS[wanted.command]
        if verb.question and not form.is_confirmed:
            return self._shell.confirm(request.http, form, verb)

        async def give() -> None:
            await self._nodes.send(node_id, wanted, caller_of(request.http).who, audit=request.audit)

        return await carry_out(self._shell, f"/fleet/{node_id}", give, language(verb.done))


def command_of(form: ConsoleForm) -> CommandRequest:
    """Return the command in a form; raise if it is not valid."""
    name = form.get("action")
    known: dict[str, CommandName] = {one: one for one in get_args(CommandName)}
    if name not in known:
        raise InvalidInput("action", "is not known", f"use one of {', '.join(known)}")
    values: dict[str, Any] = {}
    for field in (*NUMBERS, "rate_limit") if name == "config_update" else ():
        if text := form.get(field):
            try:
                values[field] = int(text) if field in NUMBERS else float(text)
            except ValueError:
                raise InvalidInput(field, f"cannot be {text[:60]!r}", "give a number") from None
    if name == "config_update" and form.get("unlimited_rate") == "yes":
        values["unlimited_rate"] = True
    return CommandRequest(command=known[name], reason=form.get("reason"), **values)


def score_parts(node: Node, formats: Formats) -> list[Part]:
    """Return the parts of a node's score, and the rest up to 1, as parts of a bar."""
    weighted = node.health.weighted
    shown = [
        Part(kind, weighted[name], f"{formats.language(title)}: {formats.number(weighted[name], 2)}")
        for name, (title, _, kind) in PARTS.items()
    ]
    return [*shown, Part("missing", max(0.0, 1 - node.health.value))]


MOST_BOTS: Final = 200
HOURS: Final = 24
MOST_TOKENS: Final = 1000
PROBLEMS: Final = (
    (
        message("{count} result came without a valid lease, and was rejected."),
        message("{count} results came without a valid lease, and were rejected."),
    ),
    (
        message("{count} lease expired because the bot sent no result or heartbeat in time."),
        message("{count} leases expired because the bot sent no result or heartbeat in time."),
    ),
    (
        message("{count} result lacks a required field of its rule set."),
        message("{count} results lack a required field of their rule set."),
    ),
    (
        message("{count} heartbeat was for a job that the bot does not hold."),
        message("{count} heartbeats were for jobs that the bot does not hold."),
    ),
)


@dataclass(frozen=True, slots=True)
class BotRow:
    """A bot and its violations of the rules; `problems` is empty if it follows the rules."""

    bot: BotActivity
    problems: tuple[str, ...]

    @property
    def is_proven(self) -> bool:
        return bool(self.bot.results or self.problems)


def row_of(bot: BotActivity, language: Language) -> BotRow:
    counts = (bot.late_results, bot.lost_leases, bot.invalid_data, bot.late_heartbeats)
    return BotRow(bot, tuple(language.plural(*PROBLEMS[place], count) for place, count in enumerate(counts) if count))


class BotsPage(LivePage):
    """`/policies/bots`."""

    paths = ("/policies/bots",)
    regions = ("bots",)
    template, section = "bots.html", "policies"

    def __init__(self, shell: Shell, tokens: Tokens, hourly: HourlyStatsReader) -> None:
        self._shell = shell
        self._tokens = tokens
        self._hourly = hourly

    @page_endpoint("/policies/bots", "Show the bots.")
    async def show_bots(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        return await self.shown(request, address=f"{request.http.url.scheme}://{request.http.url.netloc}")

    @page_endpoint("/bots.{format}", "Download the bots of the last 24 hours.", expensive=always)
    async def export_bots(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        _, bots = await self._hourly.read(HOURS, PAGES, MOST_BOTS)
        return listed(request, "bots", BotSeen, at_once(*map(BotSeen.of, bots)))

    async def context(self, view: View, params: Mapping[str, str]) -> dict[str, Any]:
        tokens = await self._tokens.newest(limit=MOST_TOKENS) if view.may_administer else []
        _, bots = await self._hourly.read(HOURS, PAGES, MOST_BOTS)
        return {
            "tokens": [token for token in tokens if TokenScope.BOT in token.scopes],
            "any_token": bool(tokens),
            "rows": [row_of(bot, view.language) for bot in bots],
            "is_live": True,
        }
