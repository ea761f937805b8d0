"""The event file: every event as one JSON line, in order. It does not decide which process writes."""

import os
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO

from shoal.base.database import Database
from shoal.base.disk import open_private
from shoal.base.errors import BadConfig
from shoal.base.service import PassResult
from shoal.events.store import EventStore

BATCH = 1_000


class EventFile:
    """Appends events to a file, at least once: after a crash between writing lines and storing the cursor, the next
    writer writes them again, with the same ids."""

    name = "event file"

    def __init__(self, database: Database, path: Path) -> None:
        self._database = database
        self._events = EventStore()
        self._path = path
        self.sink = f"file:{path}"

    async def run_once(self) -> PassResult:
        seen = await self._database.read(lambda tx: self._events.cursor(tx, self.sink))
        events = await self._database.read(lambda tx: self._events.after(tx, seen, BATCH))
        if not events:
            return PassResult()
        self._append(b"".join(one.line() + b"\n" for one in events))
        await self._database.run(lambda tx: self._events.move_cursor(tx, self.sink, seen, events[-1].sequence))
        return PassResult(again_in=timedelta(0))

    def _append(self, lines: bytes) -> None:
        try:
            with open(self._path, "ab+", opener=open_private) as file:
                file.write(_fresh_line(file) + lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise BadConfig("SHOAL_EVENTS_FILE", f"cannot be written ({error.strerror})", "use another file") from None


def _fresh_line(file: BinaryIO) -> bytes:
    """Return a line break if the last line is incomplete because a write was cut short."""
    if file.seek(0, os.SEEK_END) == 0:
        return b""
    file.seek(-1, os.SEEK_END)
    return b"" if file.read(1) == b"\n" else b"\n"
