"""Files that analyzers leave behind, such as their raw output."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from shoal.base.errors import NotFound

if TYPE_CHECKING:
    from shoal.audit.analyses import Analyses

SAFE_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file of an analyzer as its outcome lists it."""

    name: str
    bytes: int


class ArtifactStore(Protocol):
    """Stores files by analysis and name. Names match `SAFE_NAME`."""

    async def put(self, analysis_id: str, name: str, data: bytes) -> None:
        """Store a file, replacing any file of that name. The file is stored completely when this method returns."""
        ...

    async def read(self, analysis_id: str, name: str) -> bytes:
        """Return a file; raise `NotFound` if there is none."""
        ...

    async def forget(self, analysis_id: str) -> None:
        """Remove all files of an analysis; not an error if there are none."""
        ...

    def close(self) -> None: ...


class Artifacts:
    """The stored files of analyses."""

    def __init__(self, analyses: "Analyses", store: ArtifactStore) -> None:
        self._analyses = analyses
        self._store = store

    async def read(self, analysis_id: str, name: str) -> bytes:
        """Return a file that an analyzer of this analysis left. Files of earlier attempts are not found."""
        outcomes = await self._analyses.outcomes(analysis_id)
        if not any(artifact.name == name for outcome in outcomes for artifact in outcome.artifacts):
            raise NotFound("artifact", f"{analysis_id}/{name}")
        return await self._store.read(analysis_id, name)

    async def forget_crawl(self, crawl_id: str) -> None:
        """Remove the files of all analyses of a crawl."""
        after: int | None = None
        while found := await self._analyses.newest(after=after, crawl_id=crawl_id):
            for analysis in found:
                if any(outcome.artifacts for outcome in await self._analyses.outcomes(analysis.id)):
                    await self._store.forget(analysis.id)
            after = found[-1].number
