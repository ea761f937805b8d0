"""Files of analyses in a bucket of an S3-compatible store, one object each."""

from shoal.audit.artifacts import SAFE_NAME
from shoal.base.errors import NotFound
from shoal.store.bodies.s3 import S3Bodies


class S3Artifacts:
    """Implements `audit.artifacts.ArtifactStore`, with the requests of the body store."""

    def __init__(self, objects: S3Bodies) -> None:
        self._objects = objects

    async def put(self, analysis_id: str, name: str, data: bytes) -> None:
        await self._objects.put(self._file(analysis_id, name), data)

    async def read(self, analysis_id: str, name: str) -> bytes:
        data = await self._objects.get(self._file(analysis_id, name))
        if data is None:
            raise NotFound("artifact", f"{analysis_id}/{name}")
        return data

    async def forget(self, analysis_id: str) -> None:
        if SAFE_NAME.fullmatch(analysis_id):
            await self._objects.remove_folder(analysis_id)

    def close(self) -> None:
        self._objects.close()

    @staticmethod
    def _file(analysis_id: str, name: str) -> str:
        if not SAFE_NAME.fullmatch(analysis_id) or not SAFE_NAME.fullmatch(name):
            raise NotFound("artifact", f"{analysis_id}/{name}")
        return f"{analysis_id}/{name}"
