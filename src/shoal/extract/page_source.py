"""A response as the readers of optional facts see it: bytes, text and tree, each created once, on first use."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from turbohtml import Document

from shoal.extract.encoding import decode
from shoal.extract.tree import parse

HeaderPairs = Sequence[tuple[str, str]]


class Source:
    """The response of a page. The tree is shared: a change to it is visible to all later readers."""

    def __init__(
        self,
        url: str,
        body: bytes,
        content_type: str | None = None,
        *,
        status: int = 200,
        headers: HeaderPairs = (),
        http_version: str = "",
    ) -> None:
        self.url = url  # the final URL, after redirects
        self.body = body
        self.content_type = content_type
        self.status = status
        self.headers = headers
        self.http_version = http_version
        self.data: dict[str, Any] = {}  # the data extracted so far

    @cached_property
    def text(self) -> str:
        """Return the decoded body."""
        return decode(self.body, self.content_type)[0]

    @cached_property
    def document(self) -> Document:
        """Return the parsed body, without the content of `<template>`."""
        return parse(self.text)[0]
