"""Bots: the tokens they use, what they asked for lately, and how to check that they follow the rules."""

from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from shoal.access.scopes import TokenScope
from shoal.access.tokens import Tokens
from shoal.observe.hourly_stats import PAGES, HourlyStatsReader
from shoal.serve.console.feed import AnyQuery
from shoal.serve.console.shell import Shell
from shoal.serve.console.view import View
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint

MOST_BOTS: Final = 200
HOURS: Final = 24
MOST_TOKENS: Final = 1000


class BotsPage:
    """`/policies/bots`."""

    paths = ("/policies/bots",)
    regions = ("bots",)

    def __init__(self, shell: Shell, tokens: Tokens, hourly: HourlyStatsReader) -> None:
        self._shell = shell
        self._tokens = tokens
        self._hourly = hourly

    @endpoint("GET", "/policies/bots", scope=TokenScope.READ, summary="Show the bots.", query=AnyQuery, public=False)
    async def show_bots(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        context = await self.context(self._shell.view(request.http), {})
        context |= {"topic": "/policies/bots", "address": f"{request.http.url.scheme}://{request.http.url.netloc}"}
        return self._shell.page(request.http, "bots.html", context, section="policies")

    async def context(self, view: View, params: Mapping[str, str]) -> dict[str, Any]:
        tokens = await self._tokens.newest(limit=MOST_TOKENS) if view.may_administer else []
        _, bots = await self._hourly.read(HOURS, PAGES, MOST_BOTS)
        return {
            "tokens": [token for token in tokens if TokenScope.BOT in token.scopes],
            "bots": bots,
            "is_live": True,
        }

    async def lines(self, view: View, params: Mapping[str, str], after: int | None) -> list[tuple[int, str]]:
        return []
