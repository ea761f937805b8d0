"""Hourly statistics on SQL."""

from collections import defaultdict

from shoal.base.database import Tx
from shoal.observe.hourly_stats import BOT_COUNTS, HOUR, Batch, BotActivity, HourRow


class SqlHourlyStats:
    """Implements `observe.hourly_stats.HourlyStatsStore`."""

    async def add(self, tx: Tx, batch: Batch) -> None:
        now: int = await tx.value("now")
        hour = now - now % HOUR
        # Sorted, so that two processes that add at the same time cannot deadlock.
        amounts = [(hour, kind, name, float(amount)) for (kind, name), amount in sorted(batch.amounts.items())]
        bots = [
            (hour, *bot, now if done["requests"] else 0, *(done[name] for name in BOT_COUNTS))
            for bot, done in sorted(batch.bots.items())
        ]
        if amounts:
            await tx.many("add_to_hours", amounts)
        if bots:
            await tx.many("add_bots_to_hour", bots)

    async def since(self, tx: Tx, hours: int, kind: str | None) -> list[HourRow]:
        since = await self._first(tx, hours)
        bots = {row["hour"]: row["bots"] for row in await tx.all("bots_by_hour", since=since)}
        found: dict[int, dict[str, float]] = defaultdict(dict)
        for row in await tx.all("hours", since=since, kind=kind):
            found[row["hour"]][row["name"]] = row["amount"]
        seen = sorted({*found, *bots}, reverse=True)
        return [HourRow(hour, found[hour], bots.get(hour, 0)) for hour in seen]

    async def bots(self, tx: Tx, hours: int, limit: int) -> list[BotActivity]:
        rows = await tx.all("bots_seen", since=await self._first(tx, hours), limit=limit)
        return [
            BotActivity(row["token"], row["bot_id"], row["seen_at"], **{name: int(row[name]) for name in BOT_COUNTS})
            for row in rows
        ]

    async def forget(self, tx: Tx, before: int) -> int:
        return await tx.execute("forget_job_hours", before=before) + await tx.execute("forget_bot_hours", before=before)

    async def _first(self, tx: Tx, hours: int) -> int:
        now: int = await tx.value("now")
        return now - now % HOUR - (hours - 1) * HOUR
