"""File permissions: stored data is readable by its owner only, and any wider access is reported."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.app import App, opened
from shoal.app.data_folders import file_permission_warning
from shoal.base.clock import SystemClock
from shoal.base.errors import BadConfig
from shoal.base.machine import make_private, started
from shoal.base.settings_loader import load
from shoal.base.url import Url
from shoal.drivers.folder_bodies import FolderBodies
from shoal.events.forwarder import EventFile
from shoal.observe.logs import ProjectLogs
from shoal.pages.export.part_file import PartFile
from shoal.web.browser import OWNER, make_folder, reap
from shoal.web.renderer import file_name, save_screenshot


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may enter, and a umask as most machines have it."""
    before = os.umask(0o022)
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)
    os.umask(before)


def modes_in(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in folder.rglob("*")}


def at(folder: Path, **flags: str) -> dict[str, str]:
    return {"DATABASE_URL": f"sqlite:///{folder}/shoal.db", "SHOAL_DATA_DIR": str(folder), **flags}


async def warning_of(flags: dict[str, str]) -> str | None:
    async with opened(load(flags, env={}).settings) as app:
        assert isinstance(app, App)
        return file_permission_warning(app)


async def test_a_store_its_bodies_and_its_journals_are_made_for_their_owner_only(folder: Path) -> None:
    place = folder / "some" / "where"
    async with opened(load(at(place), env={}).settings) as app:
        await app.check_store()  # so that there is a log, too
        writer = FolderBodies(place / "bodies", SystemClock()).writer("crl_1")
        await writer.append(b"a body")
        await writer.close()
        ProjectLogs(place / "logs", 1, 2).append("shop", [b"a line"])
        found = modes_in(folder)
        assert file_permission_warning(app) is None
    assert {"some/where/shoal.db", "some/where/shoal.db-wal", "some/where/shoal.db-shm"} <= found.keys()
    assert {path: mode for path, mode in found.items() if mode not in (0o600, 0o700)} == {}


async def test_an_owner_is_told_of_a_store_that_others_may_read_and_how_to_close_it(folder: Path) -> None:
    store = folder / "shoal.db"
    assert await warning_of(at(folder)) is None
    store.chmod(0o644)
    assert f"chmod go= {store}" in (await warning_of(at(folder)) or "")
    assert store.stat().st_mode & 0o777 == 0o644  # the wider mode may be intended
    folder.chmod(0o700)  # noqa: ASYNC240
    assert await warning_of(at(folder)) is None


async def test_an_owner_is_told_of_folders_that_others_may_read(folder: Path) -> None:
    for name in ("bodies", "logs", "my bodies"):
        (folder / name).mkdir()
    assert f"chmod go= {folder}/bodies {folder}/logs" in (await warning_of(at(folder)) or "")
    warning = await warning_of(at(folder, SHOAL_BODIES=f"{folder}/my bodies"))
    assert f"chmod go= '{folder}/my bodies' {folder}/logs" in (warning or "")


async def test_an_owner_is_told_of_older_screenshots_and_events_that_others_may_read(folder: Path) -> None:
    (folder / "pictures").mkdir()
    (folder / "events.jsonl").touch()
    given = at(folder, SHOAL_SCREENSHOTS=f"{folder}/pictures", SHOAL_EVENTS_FILE=f"{folder}/events.jsonl")
    assert f"chmod go= {folder}/pictures {folder}/events.jsonl" in (await warning_of(given) or "")
    (folder / "pictures").chmod(0o700)
    (folder / "events.jsonl").chmod(0o600)
    assert await warning_of(given) is None


@pytest.mark.parametrize("how", ["open", "a link", "another user's"])
def test_a_folder_of_browsers_that_is_not_ours_alone_is_refused_and_not_reaped(
    folder: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Whoever made it could name any process of ours as a browser that was left behind."""
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    ours = make_folder()
    sleeper = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        (ours / OWNER).write_text(f"1 0 {sleeper.pid} {started(sleeper.pid)}\n")
        if how == "open":
            ours.parent.chmod(0o777)
        elif how == "a link":
            ours.parent.rename(folder / "theirs")
            ours.parent.symlink_to(folder / "theirs")
        else:
            monkeypatch.setattr("os.getuid", lambda: 12345)
        with pytest.raises(BadConfig, match="belongs to another user, or others may use it; remove it, or set TMPDIR"):
            make_folder()
        assert reap() == 0
        assert sleeper.poll() is None
        if how == "a link":
            ours.parent.unlink()
            ours.parent.touch()
            with pytest.raises(BadConfig, match="belongs to another user"):
                make_folder()
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_folder_that_exists_stays_as_it_is(folder: Path) -> None:
    make_private(folder / "a" / "b")
    (folder / "a").chmod(0o755)
    make_private(folder / "a" / "b" / "c")
    assert modes_in(folder) == {"a": 0o755, "a/b": 0o700, "a/b/c": 0o700}


async def test_screenshots_and_the_event_file_are_for_their_owner_only(folder: Path) -> None:
    await save_screenshot(folder / "pictures", Url("https://example.com/"), b"png")
    EventFile(None, folder / "events.jsonl")._append(b"{}\n")  # type: ignore[arg-type]
    assert set(modes_in(folder).values()) == {0o600, 0o700}


async def test_a_symbolic_link_in_place_of_a_file_is_not_followed(folder: Path) -> None:
    """In a folder that others can write to, it could lead to any file of ours."""
    target, url = folder / "mine", Url("https://example.com/")
    target.write_bytes(b"mine")
    for name in ("events.jsonl", "pages.jsonl.part", file_name(url), "shop.log"):
        (folder / name).symlink_to(target)
    with pytest.raises(BadConfig, match="SHOAL_EVENTS_FILE"):
        EventFile(None, folder / "events.jsonl")._append(b"{}\n")  # type: ignore[arg-type]
    with pytest.raises(BadConfig, match="SHOAL_SCREENSHOTS"):
        await save_screenshot(folder, url, b"png")
    part = PartFile(str(folder / "pages.jsonl"))
    for write in (part.check, part.begin):
        with pytest.raises(BadConfig, match=r"pages\.jsonl"):
            write()
    with pytest.raises(OSError, match="symbolic"):
        ProjectLogs(folder, 1, 2).append("shop", [b"a line"])
    assert target.read_bytes() == b"mine"
