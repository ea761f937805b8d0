"""Files of analyses: in a folder, with one subfolder for each analysis, or in a bucket, with one object for each
file."""

import asyncio
import os
import secrets
import shutil
from pathlib import Path

from shoal.audit.artifacts import SAFE_NAME
from shoal.base.errors import BadConfig, NotFound, StorageFull
from shoal.base.machine import NO_SPACE, make_private
from shoal.drivers.s3_bodies import S3Bodies


class FolderArtifacts:
    """Implements `audit.artifacts.ArtifactStore`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def put(self, analysis_id: str, name: str, data: bytes) -> None:
        try:
            await asyncio.to_thread(self._write, self._root / _file(analysis_id, name), data)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise StorageFull(f"the folder {self._root}", "artifacts") from error
            raise BadConfig(
                "SHOAL_ARTIFACTS", f"cannot be written to ({error.strerror})", "check the folder"
            ) from error

    async def read(self, analysis_id: str, name: str) -> bytes:
        try:
            return await asyncio.to_thread((self._root / _file(analysis_id, name)).read_bytes)
        except FileNotFoundError:
            fix = "it is not in the folder of this machine; share SHOAL_ARTIFACTS with the workers"
            raise NotFound("artifact", f"{analysis_id}/{name}", fix) from None

    async def forget(self, analysis_id: str) -> None:
        if SAFE_NAME.fullmatch(analysis_id):
            await asyncio.to_thread(shutil.rmtree, self._root / analysis_id, ignore_errors=True)

    def close(self) -> None: ...

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        """Write a file under a temporary name and rename it when it is complete, so that nobody reads a half-written
        file."""
        make_private(path.parent)
        part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            part.write_bytes(data)
            os.replace(part, path)  # noqa: PTH105 - atomic even if the target exists
        finally:
            part.unlink(missing_ok=True)


class S3Artifacts:
    """Implements `audit.artifacts.ArtifactStore`, with the requests of the body store."""

    def __init__(self, objects: S3Bodies) -> None:
        self._objects = objects

    async def put(self, analysis_id: str, name: str, data: bytes) -> None:
        await self._objects.put(_file(analysis_id, name), data)

    async def read(self, analysis_id: str, name: str) -> bytes:
        data = await self._objects.get(_file(analysis_id, name))
        if data is None:
            raise NotFound("artifact", f"{analysis_id}/{name}")
        return data

    async def forget(self, analysis_id: str) -> None:
        if SAFE_NAME.fullmatch(analysis_id):
            await self._objects.remove_folder(analysis_id)

    def close(self) -> None:
        self._objects.close()


def _file(analysis_id: str, name: str) -> str:
    if not SAFE_NAME.fullmatch(analysis_id) or not SAFE_NAME.fullmatch(name):
        raise NotFound("artifact", f"{analysis_id}/{name}")
    return f"{analysis_id}/{name}"
