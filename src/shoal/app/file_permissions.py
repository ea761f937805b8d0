"""A warning about files with secrets that every user of the machine may read."""

import shlex
from pathlib import Path

from shoal.app.app import App
from shoal.app.data_folders import body_folder, journal_folder
from shoal.base.database.sqlite import SqliteDatabase
from shoal.base.machine import readable_by_others


def file_permission_warning(app: App) -> str | None:
    """Return a warning for the operator if other users may read the store, stored bodies, journals, screenshots or the
    event file; else None."""
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
