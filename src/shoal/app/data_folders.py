"""The folders for files that belong to a store, and a warning if every user of the machine may read them."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.base.database.sqlite import SqliteDatabase
from shoal.base.machine import readable_by_others
from shoal.base.settings import DatabaseSettings, Settings

if TYPE_CHECKING:
    from shoal.app.app import App


def body_folder(settings: Settings) -> Path | None:
    """Return the folder of stored bodies; `None` if bodies are in an S3-compatible store."""
    return _folder(settings, settings.bodies.place, "bodies")


def artifact_folder(settings: Settings) -> Path | None:
    """Return the folder of analysis files; `None` if these files are in an S3-compatible store."""
    return _folder(settings, settings.audit.artifacts, "artifacts")


def _folder(settings: Settings, place: str, name: str) -> Path | None:
    if place.startswith("s3://"):
        return None
    return Path(place) if place else _store_folder(settings.database) / name


def journal_folder(settings: Settings) -> Path:
    """Return the folder of the journal files."""
    return settings.log.project_logs or _store_folder(settings.database) / "logs"


def output_folder(settings: Settings) -> Path:
    """Return the folder that remembers the output files of unfinished crawls."""
    return _store_folder(settings.database) / "outputs"


def _store_folder(settings: DatabaseSettings) -> Path:
    """Return the folder of the SQLite file; for other stores, the data folder."""
    if not settings.url.startswith("sqlite"):
        return settings.data_dir
    return Path(settings.url.removeprefix("sqlite:///")).expanduser().absolute().parent


def file_permission_warning(app: "App") -> str | None:
    """Return a warning for the operator if other users may read the store, stored bodies, journals, screenshots or the
    event file; otherwise `None`."""
    others = (app.settings.render.screenshots, app.settings.events.file)
    files = [journal_folder(app.settings), *(path for path in others if path is not None)]
    if (bodies := body_folder(app.settings)) is not None:
        files.insert(0, bodies)
    if isinstance(app.database, SqliteDatabase):
        files = [*(Path(f"{app.database.path}{ending}") for ending in ("", "-wal", "-shm")), *files]
    found = readable_by_others(files)
    if not found:
        return None
    return (
        "The store, stored bodies, crawl logs, screenshots and events may contain passwords and private data, and"
        f" every user of this machine can read them: run `chmod go= {shlex.join(map(str, found))}`"
    )
