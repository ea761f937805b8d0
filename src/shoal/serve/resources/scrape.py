"""Scrapes: one page and its content."""

from typing import Annotated, Any, ClassVar

import orjson

from shoal.base.request_form import describe
from shoal.page_jobs import scrapes
from shoal.queue.states import JobState
from shoal.serve.resources.page import PageRecord
from shoal.serve.resources.resource import Resource


class Scrape(Resource, kw_only=True):
    """One page and its content, or the reason why there is no content yet."""

    id: Annotated[str, describe("Id of the scrape; its page job has the same id.")]
    state: JobState
    explanation: Annotated[
        str | None,
        describe("A sentence that explains why there is no result (yet); null if there is a result."),
    ]
    page: Annotated[
        PageRecord | None,
        describe("Record of the page, with an `error` if the page could not be fetched; null if there is no result."),
    ]
    content: Annotated[
        dict[str, Any],
        describe(
            "Content by format. `links` is a list of {url, text, rel, nofollow, kind}, `json` the page record, and "
            "`screenshot` a PNG image in base64; other formats are text. Empty if there was no response."
        ),
    ]
    is_cut: Annotated[
        bool, describe("Whether the content is incomplete because the page was too long to be read as a whole.")
    ]

    example: ClassVar = {
        "id": "job_01hr2v8k3m4n5p6q",
        "state": "done",
        "explanation": None,
        "page": PageRecord.example,
        "content": {
            "markdown": "# About us\n\nWe make anchors.",
            "links": [{"url": "https://example.com/", "text": "Home", "rel": "", "nofollow": False, "kind": "a"}],
        },
        "is_cut": False,
    }

    @classmethod
    def written(cls, scrape: scrapes.Scrape) -> bytes:
        """Return a scrape as JSON. Its result, which may have megabytes, is stored as JSON and copied unchanged."""
        head = orjson.dumps({"id": scrape.id, "state": scrape.state, "explanation": scrape.explanation})
        result = scrape.result or orjson.dumps({"page": None, "content": {}, "is_cut": False})
        return head[:-1] + b"," + result[1:]
