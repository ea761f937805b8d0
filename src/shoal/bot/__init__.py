"""A bot in ten lines: pulls page jobs from a Shoal server over HTTP, runs your function on each, pushes what it gave.

    from shoal.bot import Bot, Job

    bot = Bot("https://shoal.example.com", token="shl_…")

    @bot.on_job
    async def look(job: Job) -> dict:
        page = await bot.fetch(job)
        return {"length": len(page.text)}

    bot.run()

Heartbeats, retries of a push and a graceful stop are the bot's own business.
"""

from shoal.bot.bot import Bot
from shoal.bot.client import BotJob
from shoal.bot.fetcher import BotPage, FetchedPage, JobFailed

__all__ = ["Bot", "BotJob", "BotPage", "FetchedPage", "JobFailed"]
