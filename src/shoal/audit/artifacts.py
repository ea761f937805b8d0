"""Files that analyses leave behind: reports and raw output of analyzers."""

import re
from typing import Final, Protocol

SAFE_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")


class ArtifactStore(Protocol):
    """Stores files by analysis and name. Names match `SAFE_NAME`."""

    async def put(self, analysis_id: str, name: str, data: bytes) -> None:
        """Store a file, in place of an earlier one of that name; it is stored completely when this returns."""
        ...

    async def read(self, analysis_id: str, name: str) -> bytes:
        """Return a file; raise `NotFound` if there is none."""
        ...

    def close(self) -> None: ...
