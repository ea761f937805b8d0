"""The error codes of page records, with descriptions. The reference is generated from this table, and a test checks
that it is complete. The messages in page records are written by the code that detects the error, not here."""

from typing import Final, NamedTuple

from shoal.base.url import UrlRefusal
from shoal.hosts.robots import NO_ROBOTS


class Meaning(NamedTuple):
    """The description of an error code, and whether a page with this error is retried before it fails."""

    description: str
    tried_again: bool = False


_REDIRECTED: Final = "A redirect leads to a URL that"

PAGE_ERRORS: Final[dict[str, Meaning]] = {
    "address_not_public": Meaning(
        "The host's address is not public and not allowed by `SHOAL_ALLOW_NETWORKS`. The log has the address."
    ),
    "port_not_allowed": Meaning("The port is below 1024 and neither 80 nor 443."),
    "self_connection": Meaning("The address belongs to Shoal's own controller."),
    "dns_error": Meaning("The host name could not be resolved.", tried_again=True),
    "connect_error": Meaning("The server refused the connection.", tried_again=True),
    "connect_timeout": Meaning("The server could not be reached within `SHOAL_CONNECT_TIMEOUT`.", tried_again=True),
    "connection_lost": Meaning("The connection was lost.", tried_again=True),
    "empty_reply": Meaning("The server closed the connection without a response.", tried_again=True),
    "idle_timeout": Meaning("The server sent nothing for `SHOAL_IDLE_TIMEOUT`.", tried_again=True),
    "total_timeout": Meaning("The whole response took longer than `SHOAL_FETCH_TIMEOUT`.", tried_again=True),
    "proxy_error": Meaning("The proxy refused the connection.", tried_again=True),
    "tls_error": Meaning("The TLS connection failed, or the certificate is not valid.", tried_again=True),
    "tls_expired": Meaning("The certificate has expired."),
    "tls_self_signed": Meaning("The certificate is self-signed."),
    "tls_unknown_issuer": Meaning("The certificate comes from an unknown authority."),
    "tls_wrong_host": Meaning("The certificate was issued for a different host."),
    "protocol_error": Meaning(
        "The response is not valid HTTP. The page is retried only if the response was incomplete.", True
    ),
    "headers_too_large": Meaning("The headers exceed `SHOAL_MAX_HEADERS` or `SHOAL_MAX_HEADER_SIZE`."),
    "body_too_large": Meaning("The body, before decompression, exceeds `SHOAL_MAX_BODY`."),
    "content_failed": Meaning("Scrapes only: the conversion to a requested format took too long, or too much memory."),
    "content_too_large": Meaning("Scrapes only: the requested content exceeds `SHOAL_MAX_RESULT`."),
    "decompressed_too_large": Meaning("The decompressed body exceeds `SHOAL_MAX_DECODED`."),
    "too_many_encodings": Meaning("The body has more nested encodings than `SHOAL_MAX_ENCODINGS`."),
    "bad_encoding": Meaning("The body does not match its `Content-Encoding`."),
    "too_many_redirects": Meaning("There are more redirects than `SHOAL_MAX_REDIRECTS`."),
    "redirect_loop": Meaning("The redirects form a loop."),
    "redirect_scheme": Meaning(f"{_REDIRECTED} {UrlRefusal.SCHEME_NOT_ALLOWED.problem}."),
    **{
        refusal.code: Meaning(f"{_REDIRECTED} {refusal.problem}.")
        for refusal in UrlRefusal
        if refusal is not UrlRefusal.SCHEME_NOT_ALLOWED
    },
    "http_status": Meaning("Page jobs only: the status is not 2xx. The page is retried after 408, 429 and 5xx.", True),
    "robots_denied": Meaning(
        "Page jobs and single pages only: robots.txt disallows the page or a redirect target. A crawl skips such a "
        "page."
    ),
    "no_slot": Meaning("Single pages only: the host's rate limit had no free slot within a minute."),
    "unknown_proxy": Meaning("Page jobs only: the worker has no proxy with that label; see `SHOAL_PROXIES`.", True),
    "unreadable_job": Meaning("Page jobs only: the worker has an older version that cannot read the job.", True),
    "robots_unreachable": Meaning(NO_ROBOTS, True),
    "render_timeout": Meaning(
        "The scripts of the page did not end within `SHOAL_RENDER_TIMEOUT`. The record has the fields of the page "
        "before rendering.",
        True,
    ),
    "render_crashed": Meaning(
        "The page crashed its browser twice, or used more memory than `SHOAL_RENDER_MEMORY`. The record has the "
        "fields of the page before rendering."
    ),
    "render_failed": Meaning("The browser could not load the page.", True),
    "not_a_page": Meaning("The URL leads to a download. Occurs only for pages that the browser itself requests."),
    "invalid_request": Meaning("A header or a method is invalid."),
    "transport_error": Meaning("The transfer failed with an unexpected error.", tried_again=True),
    "invalid_data": Meaning(
        "The page was read, but lacks a required field of the rule set, or has too much data. See `data`."
    ),
    "unstorable_result": Meaning("Page jobs only: the result could not be stored; the server's log says why.", True),
    "hook_failed": Meaning("The page was read, but a hook raised an error or returned something that is not JSON."),
    "unexpected": Meaning("Reading the page raised an unexpected error; please report it."),
    "worker_killed": Meaning("The worker died every time it fetched this page with no other page in flight."),
}
