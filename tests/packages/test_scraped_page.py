"""The content of a scraped page: what its size costs the loop."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.base.text import json_of
from shoal.egress.exchange import Limits
from shoal.extract.converter import Converted, Converter, UnconvertedPage
from shoal.page_jobs import scraped_page
from shoal.page_jobs.scraped_page import add_content
from tests.support.converters import LONGEST_PAUSE, longest_pause


class Nothing(Converter):
    async def convert(self, page: UnconvertedPage) -> Converted:
        return Converted({}, False)


async def test_a_large_screenshot_does_not_stop_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scraped_page, "source_from", lambda *_: SimpleNamespace(url="", body=b"", content_type=None))
    document: dict[str, Any] = {"page": {"robots": None}}
    fetched = cast(Any, SimpleNamespace(captured=[SimpleNamespace(response=None, rendered=None)]))
    picture = bytes(100_000_000)
    working = asyncio.ensure_future(
        add_content(document, ["screenshot"], fetched, picture, cast(Limits, None), 2 * len(picture), Nothing())
    )
    assert await longest_pause(working) < 5 * LONGEST_PAUSE  # on a busy machine; 0.3 if the loop encodes
    assert working.result() is None
    assert len(json_of(document["content"]["screenshot"])) == 133_333_338
