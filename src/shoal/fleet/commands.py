"""Commands for nodes, and how each changes the state that operators want a node to have. Pure."""

from msgspec import Struct, structs

from shoal.base.errors import InvalidInput
from shoal.base.ids import NodeId, new_id
from shoal.fleet.node import CommandName, DesiredState, DesiredStateName, NodeCommand

MOST_RUNS = 1000  # at once on one node
MOST_PAGES = 10_000
HIGHEST_RATE = 1_000_000.0  # pages per second
LONGEST_REASON = 500

_STATE_AFTER: dict[CommandName, DesiredStateName] = {"pause": "paused", "resume": "connected", "drain": "drained"}


class CommandRequest(Struct, frozen=True, kw_only=True):
    """A command that somebody wants to give. Only `config_update` takes values, and at least one of them."""

    command: CommandName
    reason: str = ""
    max_concurrency: int | None = None
    page_slots: int | None = None
    rate_limit: float | None = None  # pages per second
    unlimited_rate: bool = False  # remove the rate limit

    def check(self) -> None:
        """Raise `InvalidInput` if a value cannot be applied; an explicit 0 never means unchanged here."""
        values = (self.max_concurrency, self.page_slots, self.rate_limit, self.unlimited_rate or None)
        given = any(value is not None for value in values)
        if self.command != "config_update" and given:
            raise InvalidInput("command", f"`{self.command}` takes no values", "send them with `config_update`")
        if self.command == "config_update" and not given:
            fix = "set max_concurrency, page_slots, rate_limit or unlimited_rate"
            raise InvalidInput("command", "`config_update` changes nothing", fix)
        _within("max_concurrency", self.max_concurrency, 1, MOST_RUNS)
        _within("page_slots", self.page_slots, 1, MOST_PAGES)
        if self.rate_limit is not None and not 0 < self.rate_limit <= HIGHEST_RATE:  # also refuses NaN
            fix = (
                f"use more than 0 and at most {HIGHEST_RATE:g} pages per second, or unlimited_rate to remove the limit"
            )
            raise InvalidInput("rate_limit", f"cannot be {self.rate_limit:g}", fix)
        if self.unlimited_rate and self.rate_limit is not None:
            raise InvalidInput("rate_limit", "contradicts unlimited_rate", "set one of the two")
        if len(self.reason) > LONGEST_REASON:
            raise InvalidInput("reason", f"is longer than {LONGEST_REASON} characters", "shorten it")

    def for_node(self, node_id: NodeId, by: str) -> NodeCommand:
        """Return this command for one node, with a new id."""
        return NodeCommand(
            id=new_id("cmd"),
            node_id=node_id,
            command=self.command,
            reason=self.reason,
            max_concurrency=self.max_concurrency,
            page_slots=self.page_slots,
            rate_limit=0.0 if self.unlimited_rate else self.rate_limit,
            created_by=by,
        )


def _within(field: str, value: int | None, least: int, most: int) -> None:
    if value is not None and not least <= value <= most:
        raise InvalidInput(field, f"cannot be {value}", f"use a number from {least} to {most}")


def desired_after(desired: DesiredState, command: NodeCommand) -> DesiredState:
    """Return what operators want of a node once they have given this command. Restarting the browser is not a state, so
    it is not sent again."""
    if command.command == "config_update":
        names = ("max_concurrency", "page_slots", "rate_limit")
        values = {name: getattr(command, name) for name in names if getattr(command, name) is not None}
        return structs.replace(desired, **values)
    state = _STATE_AFTER.get(command.command)
    return desired if state is None else structs.replace(desired, state=state, reason=command.reason)


def commands_to_reach(node_id: NodeId, desired: DesiredState) -> list[NodeCommand]:
    """Return the commands that make a node what operators want it to be, to be sent when a session begins. They have no
    id, so they are not acknowledged. The state comes last: a node should know its limits before it takes jobs."""
    commands = []
    if (desired.max_concurrency, desired.page_slots, desired.rate_limit) != (None, None, None):
        commands.append(
            NodeCommand(
                id="",
                node_id=node_id,
                command="config_update",
                max_concurrency=desired.max_concurrency,
                page_slots=desired.page_slots,
                rate_limit=desired.rate_limit,
            )
        )
    if desired.state != "connected":
        name: CommandName = "pause" if desired.state == "paused" else "drain"
        commands.append(NodeCommand(id="", node_id=node_id, command=name, reason=desired.reason))
    return commands
