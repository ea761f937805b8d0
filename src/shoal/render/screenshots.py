"""Pictures of rendered pages, one file per page."""

import asyncio
import re
from pathlib import Path

from xxhash import xxh3_64_hexdigest

from shoal.base.disk import make_private, open_private
from shoal.base.errors import BadConfig
from shoal.base.url import Url

LONGEST_NAME = 100


def file_name(url: Url) -> str:
    """Return a file name that a person recognizes, and that differs from those of all other URLs."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", url.partition("://")[2]).strip("-")[:LONGEST_NAME]
    return f"{readable}-{xxh3_64_hexdigest(url.encode())}.png"


async def save_screenshot(folder: Path, url: Url, picture: bytes) -> None:
    """Write the picture of a page; raise `BadConfig` if the folder cannot be written to."""

    def write() -> None:
        make_private(folder)
        with open(folder / file_name(url), "wb", opener=open_private) as file:
            file.write(picture)

    try:
        await asyncio.to_thread(write)
    except OSError as error:
        why = error.strerror or str(error)
        raise BadConfig("SHOAL_SCREENSHOTS", f"cannot be written to ({why})", "choose a writable folder") from None
