"""A bot in ten lines: pull page jobs from a Shoal server over HTTP, run your function for each job, push the result.

    from shoal.bot import Bot, Job

    bot = Bot("https://shoal.example.com", token="shl_…")

    @bot.on_job
    async def look(job: Job) -> dict:
        page = await bot.fetch(job)
        return {"length": len(page.text)}

    bot.run()

The bot renews its leases, retries failed pushes and stops gracefully.
"""

from shoal.bot.bot import Bot
from shoal.bot.client import BotJob as Job
from shoal.bot.fetcher import BotPage as Page
from shoal.bot.fetcher import Found, JobFailed

__all__ = ["Bot", "Found", "Job", "JobFailed", "Page"]
