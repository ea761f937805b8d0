"""Clocks of real processes that are set while they run: the database server's, or the wall clock of every process."""

import struct
from pathlib import Path

from tests.support.servers import ask_postgres

FOLDER = Path(__file__).parent / "wallclock"
HOUR = 3600


class SettableClock:
    """The clock below a store's: on PostgreSQL the server's, for a file that of the processes on it, which are to be
    started with `env`."""

    def __init__(self, store_url: str, folder: Path) -> None:
        self._store_url = store_url
        self._file = folder / "wall-clock"
        self._file.write_bytes(bytes(8))
        self._shift = 0

    @property
    def env(self) -> dict[str, str]:
        if not self._store_url.startswith("sqlite"):
            return {}
        return {"PYTHONPATH": str(FOLDER), "SHOAL_TEST_WALL_CLOCK": str(self._file)}

    def step(self, seconds: int) -> None:
        if self._store_url.startswith("sqlite"):
            self._shift += seconds * 1_000_000_000
            with self._file.open("r+b") as file:
                file.write(struct.pack("<q", self._shift))
        else:
            ask_postgres(self._store_url, f"UPDATE store_clock SET shift = shift + {seconds * 1_000_000}")
