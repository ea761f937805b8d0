"""REST endpoints for nodes: list, show, explain, send commands."""

from typing import Annotated

from msgspec.structs import asdict

from shoal.access.token import TokenScope
from shoal.base.errors import NotFound
from shoal.base.request_form import Form, describe
from shoal.fleet.explain import NodeExplainer
from shoal.fleet.node import LONGEST_REASON, CommandName, CommandRequest
from shoal.fleet.nodes import Nodes
from shoal.fleet.states import NodeState
from shoal.serve.authentication import caller_of
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.requests import Paging, page_of, text_of
from shoal.serve.resources.node import Node, NodeCommand, NodeCommandList, NodeDetail, NodeExplained, NodeList


class NodeQuery(Paging, frozen=True, kw_only=True, forbid_unknown_fields=True):
    state: Annotated[NodeState | None, describe("Only nodes in this state.")] = None


class CommandForm(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command. Only `config_update` accepts values; omitted values stay unchanged."""

    command: Annotated[CommandName, describe("Command for the node.")]
    reason: Annotated[str, describe("Reason, for logs and `explain`.", max_length=LONGEST_REASON)] = ""
    max_concurrency: Annotated[int | None, describe("Maximum number of crawls and analyses at the same time.")] = None
    page_slots: Annotated[int | None, describe("Maximum number of page jobs at the same time.")] = None
    rate_limit: Annotated[float | None, describe("Maximum number of pages to fetch per second.")] = None
    unlimited_rate: Annotated[bool, describe("Remove the rate limit.")] = False

    def to_request(self) -> CommandRequest:
        return CommandRequest(**asdict(self))


class NodeApi:
    """`/api/v1/nodes`."""

    def __init__(self, nodes: Nodes, explainer: NodeExplainer) -> None:
        self._nodes = nodes
        self._explainer = explainer

    @endpoint(
        "GET",
        "/api/v1/nodes",
        scope=TokenScope.READ,
        summary="List nodes by id, with their health scores.",
        query=NodeQuery,
        response=NodeList,
    )
    async def list_nodes(self, request: EndpointRequest[Nothing, NodeQuery]) -> NodeList:
        """Nodes are workers that are connected to a control plane (`GRPC_ANALYZER_ADDR`). Other workers are not
        listed."""
        query = request.query
        after = "" if query.cursor is None else text_of(query.cursor)
        found = [
            node
            for node in await self._nodes.list_all()
            if node.id > after and (query.state is None or node.state is query.state)
        ]
        nodes, more = page_of(found, query.limit, lambda node: node.id)
        return NodeList(items=[Node.of(one) for one in nodes], next=more)

    @endpoint(
        "POST",
        "/api/v1/nodes/commands",
        scope=TokenScope.WRITE,
        summary="Send the same command to every node.",
        body=CommandForm,
        status=202,
        response=NodeCommandList,
        request_example={"command": "pause", "reason": "database maintenance"},
    )
    async def command_all_nodes(self, request: EndpointRequest[CommandForm, Nothing]) -> NodeCommandList:
        """Lost nodes get no command. The response contains one command per node; each node acknowledges its own
        command."""
        by = caller_of(request.http).who
        commands = await self._nodes.broadcast(request.body.to_request(), by, audit=request.audit)
        return NodeCommandList(items=[NodeCommand.of(one) for one in commands])

    @endpoint(
        "GET",
        "/api/v1/nodes/{node_id}",
        scope=TokenScope.READ,
        summary="Show a node, its leases and its newest commands.",
        response=NodeDetail,
    )
    async def show_node(self, request: EndpointRequest[Nothing, Nothing]) -> NodeDetail:
        node = await self._nodes.get(request.path_param("node_id"))
        return NodeDetail.with_commands(node, await self._nodes.commands_of(node.id))

    @endpoint(
        "GET",
        "/api/v1/nodes/{node_id}/explain",
        scope=TokenScope.READ,
        summary="Explain why a node gets jobs, or why it gets none.",
        response=NodeExplained,
    )
    async def explain_node(self, request: EndpointRequest[Nothing, Nothing]) -> NodeExplained:
        return NodeExplained.of(await self._explainer.explain(request.path_param("node_id")))

    @endpoint(
        "POST",
        "/api/v1/nodes/{node_id}/commands",
        scope=TokenScope.WRITE,
        summary="Send a command to a node.",
        body=CommandForm,
        status=202,
        response=NodeCommand,
        request_example={"command": "config_update", "max_concurrency": 4, "rate_limit": 20},
    )
    async def command_node(self, request: EndpointRequest[CommandForm, Nothing]) -> NodeCommand:
        """The command is stored, delivered at least once, applied once and acknowledged; its `state` shows the
        progress. `pause`, `resume`, `drain` and the values of `config_update` also apply after the node has
        restarted."""
        by = caller_of(request.http).who
        node_id = request.path_param("node_id")
        return NodeCommand.of(await self._nodes.send(node_id, request.body.to_request(), by, audit=request.audit))

    @endpoint(
        "GET",
        "/api/v1/nodes/{node_id}/commands/{command_id}",
        scope=TokenScope.READ,
        summary="Show the state of a command.",
        response=NodeCommand,
    )
    async def show_command(self, request: EndpointRequest[Nothing, Nothing]) -> NodeCommand:
        command = await self._nodes.command(request.path_param("command_id"))
        if command.node_id != request.path_param("node_id"):
            raise NotFound("command", command.id, f"the command belongs to node {command.node_id}")
        return NodeCommand.of(command)
