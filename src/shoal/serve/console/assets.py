"""The static files of the console, compressed once and served from memory under URLs that change with their content."""

import mimetypes
from functools import cached_property
from pathlib import Path
from typing import Final
from zlib import crc32

from isal import isal_zlib
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

STATIC: Final = Path(__file__).parents[1] / "static"
FOR_EVER: Final = {"Cache-Control": "public, max-age=31536000, immutable"}
SHORTLY: Final = {"Cache-Control": "public, max-age=60"}  # a module that another one imports, by its plain name
GZIP: Final = 31  # window bits of zlib for the gzip format
LEVEL: Final = 2


class Asset:
    """One static file."""

    def __init__(self, path: Path) -> None:
        self.body = path.read_bytes()
        self.media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        self.version = f"{crc32(self.body):08x}"

    @cached_property
    def compressed(self) -> bytes:
        return compress(self.body)


class Assets:
    """The static files by their path below the folder; nothing else can be requested."""

    def __init__(self, folder: Path = STATIC) -> None:
        self._assets = {
            path.relative_to(folder).as_posix(): Asset(path) for path in folder.rglob("*") if path.is_file()
        }

    def address(self, name: str) -> str:
        """Return the path of a file; it changes with the content, so that browsers do not use an old copy."""
        return f"/static/{name}?v={self._assets[name].version}"

    def route(self) -> BaseRoute:
        return Route("/static/{name:path}", self.serve, methods=["GET"])

    async def serve(self, request: Request) -> Response:
        asset = self._assets.get(request.path_params["name"])
        if asset is None:
            raise HTTPException(404)
        headers = FOR_EVER if request.query_params.get("v") == asset.version else SHORTLY
        headers = headers | {"Vary": "Accept-Encoding"}
        if accepts_gzip(request):
            return Response(
                asset.compressed, headers=headers | {"Content-Encoding": "gzip"}, media_type=asset.media_type
            )
        return Response(asset.body, headers=headers, media_type=asset.media_type)


def accepts_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


def compress(body: bytes) -> bytes:
    return bytes(isal_zlib.compress(body, LEVEL, GZIP))
