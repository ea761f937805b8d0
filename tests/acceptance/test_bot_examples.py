"""The example bots of the guide, in each language, fetch the pages of a real site for a real server."""

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from shoal.base.ids import JobId
from shoal.page_jobs.spec import GroupConfig, GroupState
from tests.acceptance.test_guides import ROOT, blocks, run_commands
from tests.support.controller import ServedController, served_controller
from tests.support.fleet import clean_environment
from tests.support.site import Site

PAGES = 3
HERE = {"SHOAL_ALLOW_NETWORKS": "127.0.0.0/8"}
RUNNERS = {
    "python": ("bot.py", [sys.executable, "-W", "error"]),
    "js": ("bot.mjs", ["node"]),
    "bash": ("bot.sh", ["sh"]),
}


def needs(language: str) -> None:
    for program in {"js": ["node"], "bash": ["curl", "jq"]}.get(language, []):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not on this machine")


async def until_over(shop: ServedController, group_id: str) -> GroupState:
    async with asyncio.timeout(120):
        while (group := await shop.app.page_jobs.groups.get(group_id)).state is GroupState.OPEN:
            await shop.app.clock.sleep(0.05)
    return group.state


@pytest.mark.parametrize("language", RUNNERS)
async def test_the_bot_of_the_guide_brings_pages_home(language: str, sqlite_url: str, tmp_path: Path) -> None:
    needs(language)
    [program] = blocks("bots.md", language)
    name, words = RUNNERS[language]
    (tmp_path / name).write_text(program)
    with Site(pages=PAGES) as site:
        async with served_controller(sqlite_url, SHOAL_PAGE_SPEED="max", **HERE) as shop:
            env = clean_environment(tmp_path) | HERE | {"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"]}
            env |= {"SHOAL_SERVER": f"http://127.0.0.1:{shop.port}", "SHOAL_TOKEN": await shop.token("bot")}
            bot = await asyncio.create_subprocess_exec(*words, name, cwd=tmp_path, env=env, start_new_session=True)
            try:
                urls = [site.url(number) for number in range(PAGES)]
                group = await shop.app.page_jobs.groups.make(GroupConfig.read({"urls": urls}))
                assert await until_over(shop, group.id) is GroupState.COMPLETED
                found = await shop.app.page_jobs.groups.results(group.id)
            finally:
                os.killpg(bot.pid, signal.SIGTERM)
                await bot.wait()
    assert sorted(one.result.url for one in found) == sorted(urls)
    assert {one.result.status.value for one in found} == {"success"}
    assert all(one.result.data["title"] for one in found)
    assert all(JobId(one.job_id) for one in found)


async def test_the_reference_bot_takes_what_the_rule_set_says(sqlite_url: str, tmp_path: Path) -> None:
    rules = {"fields": {"title": {"css": "title", "required": True}}}
    with Site(pages=1) as site:
        async with served_controller(sqlite_url, SHOAL_PAGE_SPEED="max", **HERE) as shop:
            env = clean_environment(tmp_path) | HERE | {"PYTHONPATH": str(ROOT / "src")}
            server, token = f"http://127.0.0.1:{shop.port}", await shop.token("bot")
            words = ["-m", "shoal", "bot", "--server", server, "--token", token, "--name", "reference"]
            bot = await asyncio.create_subprocess_exec(
                sys.executable, *words, cwd=tmp_path, env=env, stderr=asyncio.subprocess.PIPE
            )
            try:
                group = await shop.app.page_jobs.groups.make(
                    GroupConfig.read({"urls": [site.url(0)], "rule_set": rules})
                )
                assert await until_over(shop, group.id) is GroupState.COMPLETED
                [found] = await shop.app.page_jobs.groups.results(group.id)
            finally:
                bot.terminate()
                _, said = await bot.communicate()
    assert found.result.data["title"]
    assert found.result.html_hash
    assert (bot.returncode, b"pushed 1 result." in said) == (0, True)


def test_the_commands_of_the_guide_on_bots_work(tmp_path: Path) -> None:
    with Site(pages=1) as site:
        assert run_commands("bots.md", site, tmp_path, **HERE) == 3
