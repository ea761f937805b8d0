"""Bots: the tokens they use, what they asked for lately, and how to check that they follow the rules."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response

from shoal.access.scopes import TokenScope
from shoal.access.tokens import Tokens
from shoal.base.clock import Clock
from shoal.base.signals import Signal
from shoal.page_jobs.bots import BotAsked, BotPulled
from shoal.serve.console.feed import AnyQuery
from shoal.serve.console.shell import Shell
from shoal.serve.console.view import View
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint

MOST_BOTS: Final = 1000  # that are remembered, the latest
MOST_TOKENS: Final = 1000


@dataclass(slots=True)
class BotRecord:
    """What one bot asked of this controller."""

    token: str
    bot_id: str
    asked_at: int
    pulls: int = 0
    jobs: int = 0


class BotActivity:
    """Counts the requests of bots to this controller, since it started."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._bots: OrderedDict[tuple[str, str], BotRecord] = OrderedDict()

    def listen(self, signal: Signal) -> None:
        if isinstance(signal, BotAsked):
            key = signal.token, signal.bot_id
            record = self._bots.pop(key, None) or BotRecord(signal.token, signal.bot_id, 0)
            record.asked_at, record.pulls = self._clock.micros(), record.pulls + 1
            self._bots[key] = record
            if len(self._bots) > MOST_BOTS:
                self._bots.popitem(last=False)
        elif isinstance(signal, BotPulled) and (found := self._bots.get((signal.token, signal.bot_id))):
            found.jobs += signal.jobs

    @property
    def latest(self) -> list[BotRecord]:
        """The bots, the latest first."""
        return list(reversed(self._bots.values()))


class BotsPage:
    """`/policies/bots`."""

    paths = ("/policies/bots",)
    regions = ("bots",)

    def __init__(self, shell: Shell, tokens: Tokens, activity: BotActivity) -> None:
        self._shell = shell
        self._tokens = tokens
        self._activity = activity

    @endpoint("GET", "/policies/bots", scope=TokenScope.READ, summary="Show the bots.", query=AnyQuery, public=False)
    async def show_bots(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        context = await self.context(self._shell.view(request.http), {})
        context |= {"topic": "/policies/bots", "address": f"{request.http.url.scheme}://{request.http.url.netloc}"}
        return self._shell.page(request.http, "bots.html", context, section="policies")

    async def context(self, view: View, params: Mapping[str, str]) -> dict[str, Any]:
        tokens = await self._tokens.newest(limit=MOST_TOKENS) if view.may_administer else []
        return {
            "tokens": [token for token in tokens if TokenScope.BOT in token.scopes],
            "bots": self._activity.latest,
            "is_live": True,
        }

    async def lines(self, view: View, params: Mapping[str, str], after: int | None) -> list[tuple[int, str]]:
        return []
