"""Console tables as CSV and JSON Lines files."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from msgspec import to_builtins
from msgspec.structs import fields
from starlette.responses import StreamingResponse

from shoal.base.errors import NotFound
from shoal.base.text import shorten
from shoal.pages.export.formats import Csv, Format, JsonLines
from shoal.pages.export.table import Columns, Row
from shoal.serve.endpoint import EndpointRequest
from shoal.serve.resources.resource import Resource

T = TypeVar("T")
R = TypeVar("R")
FORMATS: Final[Mapping[str, tuple[type[Csv] | type[JsonLines], str]]] = {
    "csv": (Csv, "text/csv; charset=utf-8"),
    "jsonl": (JsonLines, "application/jsonl"),
}


def format_of(name: str, columns: Columns) -> Format:
    """Return the format with this name; raise if it does not exist."""
    if name not in FORMATS:
        raise NotFound("format", shorten(name), f"use {' or '.join(FORMATS)}")
    return FORMATS[name][0](columns)


def exported(made: Format, file_name: str, batches: AsyncIterable[Iterable[Row]]) -> StreamingResponse:
    """Send batches of rows as a file. The extension of the file name selects the format."""

    async def content() -> AsyncIterator[bytes]:
        yield made.head()
        async for rows in batches:
            for part in await asyncio.to_thread(lambda: list(made.rows(rows))):  # noqa: B023 - awaited here
                yield part
        for part in made.tail():
            yield part

    headers = {"Content-Disposition": f'attachment; filename="{file_name}"', "Cache-Control": "no-store"}
    return StreamingResponse(content(), headers=headers, media_type=FORMATS[file_name.rpartition(".")[2]][1])


def listed(
    request: EndpointRequest[Any, Any], title: str, kind: type[Resource], batches: AsyncIterable[Iterable[Resource]]
) -> StreamingResponse:
    """Send a list of resources as a file in the requested format. The columns are the API fields of the resource."""
    name = request.path_param("format")
    made = format_of(name, dict.fromkeys((one.encode_name for one in fields(kind)), "json"))

    async def rows() -> AsyncIterator[Iterator[Row]]:
        async for batch in batches:
            yield (to_builtins(one) for one in batch)

    return exported(made, f"{title}.{name}", rows())


async def at_once(*rows: T) -> AsyncIterator[Sequence[T]]:
    """Yield all rows of a short table as one batch."""
    yield rows


async def batched(
    read: Callable[[Any], Awaitable[Sequence[T]]], place: Callable[[T], object], shown: Callable[[T], R]
) -> AsyncIterator[list[R]]:
    """Yield the rows of a long table, batch by batch. `read` receives the position of the last row, or None at the
    beginning."""
    after = None
    while found := await read(after):
        yield [shown(one) for one in found]
        after = place(found[-1])
