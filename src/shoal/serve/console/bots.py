"""Bots: the tokens they use, what they did lately, and whether they follow the rules."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response

from shoal.access.token import TokenScope
from shoal.access.tokens import Tokens
from shoal.base.text import message
from shoal.observe.stats import PAGES, BotActivity, HourlyStatsReader
from shoal.serve.console.feed import AnyQuery
from shoal.serve.console.messages import Language
from shoal.serve.console.shell import Shell
from shoal.serve.console.view import View
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint

MOST_BOTS: Final = 200
HOURS: Final = 24
MOST_TOKENS: Final = 1000
PROBLEMS: Final = (
    (
        message("{count} result came without a valid lease, and was rejected."),
        message("{count} results came without a valid lease, and were rejected."),
    ),
    (
        message("{count} lease expired: there was no result and no heartbeat in time."),
        message("{count} leases expired: there was no result and no heartbeat in time."),
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
    """A bot, and what is wrong with what it did; nothing if it follows the rules."""

    bot: BotActivity
    problems: tuple[str, ...]

    @property
    def is_proven(self) -> bool:
        return bool(self.bot.results or self.problems)


def row_of(bot: BotActivity, language: Language) -> BotRow:
    counts = (bot.late_results, bot.lost_leases, bot.invalid_data, bot.late_heartbeats)
    return BotRow(bot, tuple(language.plural(*PROBLEMS[place], count) for place, count in enumerate(counts) if count))


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
            "any_token": bool(tokens),
            "rows": [row_of(bot, view.language) for bot in bots],
            "is_live": True,
        }

    async def lines(self, view: View, params: Mapping[str, str], after: int | None) -> list[tuple[int, str]]:
        return []
