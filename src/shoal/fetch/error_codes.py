"""The error codes of page records, with descriptions. The reference is generated from this table, and a test checks
that it is complete. Messages are written where the error occurs."""

from typing import Final, NamedTuple

from shoal.base.url import UrlRefusal


class Meaning(NamedTuple):
    """The description of a code, and whether the page is retried before it fails."""

    description: str
    tried_again: bool = False


_REDIRECTED: Final = "A redirect leads to a URL that"

PAGE_ERRORS: Final[dict[str, Meaning]] = {
    "address_not_public": Meaning(
        "The host's address is not public, and nobody allowed it. The log names the address."
    ),
    "port_not_allowed": Meaning("The port is below 1024 and neither 80 nor 443."),
    "self_connection": Meaning("The address is that of Shoal's own controller."),
    "dns_error": Meaning("The name could not be resolved.", tried_again=True),
    "connect_error": Meaning("The server does not take connections.", tried_again=True),
    "connect_timeout": Meaning("The server could not be reached within `SHOAL_CONNECT_TIMEOUT`.", tried_again=True),
    "connection_lost": Meaning("The connection broke.", tried_again=True),
    "empty_reply": Meaning("The server closed the connection without an answer.", tried_again=True),
    "idle_timeout": Meaning("The server fell silent for `SHOAL_IDLE_TIMEOUT`.", tried_again=True),
    "total_timeout": Meaning("The whole answer took longer than `SHOAL_FETCH_TIMEOUT`.", tried_again=True),
    "proxy_error": Meaning("The proxy refused.", tried_again=True),
    "tls_error": Meaning("No TLS connection could be made, or the certificate is not valid.", tried_again=True),
    "tls_expired": Meaning("The certificate has expired."),
    "tls_self_signed": Meaning("The certificate is self-signed."),
    "tls_unknown_issuer": Meaning("The certificate comes from an unknown authority."),
    "tls_wrong_host": Meaning("The certificate is for another host."),
    "protocol_error": Meaning("The answer is not valid HTTP. Only one that breaks off is asked for again.", True),
    "headers_too_large": Meaning("The headers pass `SHOAL_MAX_HEADERS` or `SHOAL_MAX_HEADER_SIZE`."),
    "body_too_large": Meaning("The body as it was sent passes `SHOAL_MAX_BODY`."),
    "decompressed_too_large": Meaning("Decompressed, the body passes `SHOAL_MAX_DECODED`."),
    "too_many_encodings": Meaning("The body is encoded more often than `SHOAL_MAX_ENCODINGS`."),
    "bad_encoding": Meaning("The body is not what its `Content-Encoding` says."),
    "too_many_redirects": Meaning("The redirects pass `SHOAL_MAX_REDIRECTS`."),
    "redirect_loop": Meaning("The redirects lead in a circle."),
    "redirect_scheme": Meaning(f"{_REDIRECTED} {UrlRefusal.SCHEME_NOT_ALLOWED.problem}."),
    **{
        refusal.code: Meaning(f"{_REDIRECTED} {refusal.problem}.")
        for refusal in UrlRefusal
        if refusal is not UrlRefusal.SCHEME_NOT_ALLOWED
    },
    "http_status": Meaning(
        "Only of a page job: the server answered, but not with 2xx. Tried again after 408, 429 and 5xx.", True
    ),
    "robots_denied": Meaning(
        "Only of a page job: robots.txt forbids the page, or one that it redirects to. A crawl skips such a page."
    ),
    "unknown_proxy": Meaning("Only of a page job: the worker knows no proxy of that label, see `SHOAL_PROXIES`.", True),
    "unreadable_job": Meaning("Only of a page job: the worker is older than the job, and cannot read it.", True),
    "robots_unreachable": Meaning("The host's robots.txt could not be had, so nothing there may be fetched.", True),
    "invalid_request": Meaning("A header or a method cannot be sent as it is."),
    "transport_error": Meaning("The transfer failed in a way that nobody foresaw.", tried_again=True),
    "invalid_data": Meaning(
        "The page was read, but lacks a required field of the rule set, or has too much data. See `data`."
    ),
    "hook_failed": Meaning("The page was read, but a hook raised an error, or gave what JSON cannot hold."),
    "unexpected": Meaning("Reading the page raised an error that nobody foresaw: please report it."),
    "worker_killed": Meaning("The worker died each time it fetched this page alone."),
}
