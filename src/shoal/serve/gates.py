"""REST endpoints for gates."""

from typing import Annotated

from msgspec.structs import asdict
from starlette.responses import Response

from shoal.access.token import TokenScope
from shoal.audit.gate import Gate
from shoal.audit.gates import Gates
from shoal.base.errors import AlreadyExists, NotFound
from shoal.base.request_form import describe
from shoal.crawl.crawl import Name
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.problems import Json
from shoal.serve.resources.analysis import GateList, StoredGate

_RULES = {"rules": [{"metric": "broken_links", "op": "<=", "threshold": 0}], "fail": ["redirect_loop"]}


class NewGate(Gate, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A gate with its name."""

    name: Annotated[Name, describe("Name of the gate.")]


class GateApi:
    """`/api/v1/gates`."""

    def __init__(self, gates: Gates) -> None:
        self._gates = gates

    @endpoint(
        "POST",
        "/api/v1/gates",
        scope=TokenScope.WRITE,
        summary="Create a gate.",
        body=NewGate,
        status=201,
        response=StoredGate,
        request_example={"name": "release", **_RULES},
        problems=[AlreadyExists],
    )
    async def create_gate(self, request: EndpointRequest[NewGate, Nothing]) -> Response:
        """Crawls, policies and analyses refer to it by its name. A rule holds while `metric op threshold` is true; with
        `max_increase`, while the metric has not risen by more than that since the baseline. A store has at most 200
        gates."""
        fields = asdict(request.body)
        stored = await self._gates.create(fields.pop("name"), Gate(**fields).checked(), audit=request.audit)
        return Json(StoredGate.of(stored), 201, {"Location": f"/api/v1/gates/{stored.name}"})

    @endpoint(
        "GET",
        "/api/v1/gates",
        scope=TokenScope.READ,
        summary="List gates.",
        response=GateList,
    )
    async def list_gates(self, request: EndpointRequest[Nothing, Nothing]) -> GateList:
        return GateList(items=[StoredGate.of(one) for one in await self._gates.all()])

    @endpoint(
        "GET",
        "/api/v1/gates/{name}",
        scope=TokenScope.READ,
        summary="Show a gate.",
        response=StoredGate,
        problems=[NotFound],
    )
    async def show_gate(self, request: EndpointRequest[Nothing, Nothing]) -> StoredGate:
        return StoredGate.of(await self._gates.get(request.path_param("name")))

    @endpoint(
        "PUT",
        "/api/v1/gates/{name}",
        scope=TokenScope.WRITE,
        summary="Create or replace a gate.",
        body=Gate,
        response=StoredGate,
        request_example=_RULES,
    )
    async def replace_gate(self, request: EndpointRequest[Gate, Nothing]) -> StoredGate:
        """Analyses that exist keep the rules they were created with."""
        stored = await self._gates.put(request.path_param("name"), request.body.checked(), audit=request.audit)
        return StoredGate.of(stored)

    @endpoint(
        "DELETE",
        "/api/v1/gates/{name}",
        scope=TokenScope.WRITE,
        summary="Remove a gate.",
        status=204,
        problems=[NotFound],
    )
    async def remove_gate(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        """An analysis of a crawl whose gate is gone has an inconclusive verdict."""
        await self._gates.delete(request.path_param("name"), audit=request.audit)
        return Response(status_code=204)
