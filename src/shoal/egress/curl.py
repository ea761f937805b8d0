"""libcurl: the options that never change, the translation of its errors into Shoal's, and its certificates."""

import importlib
import os
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pycurl

from shoal.base.parsing import show_size
from shoal.egress.address import AddressRefusal, Proxy
from shoal.egress.exchange import Failure, Limits

# Most pages are smaller than this, so they need one read and one callback instead of several.
_BUFFER_BYTES: Final = 128 * 1024
_SUPPRESS_CONNECT_HEADERS: Final = 265  # CURLOPT_…, for which pycurl has no constant
_IDLE_SECONDS: Final = 30
_LIFETIME_SECONDS: Final = 600


def lock_down(handle: Any, ca_file: str | None, proxy: Proxy | None) -> None:
    """Set the options that never change, beginning with those that switch off libcurl's own behaviour."""
    fixed: Sequence[tuple[int, object]] = (
        (pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS),
        (pycurl.FOLLOWLOCATION, 0),
        (pycurl.NETRC, 0),
        (pycurl.USERAGENT, ""),  # otherwise pycurl sends its own name
        (pycurl.PROXY, proxy.url if proxy else ""),  # an empty string also disables the proxies of the environment
        (pycurl.NOPROXY, ""),
        (_SUPPRESS_CONNECT_HEADERS, 1),
        (pycurl.HTTP09_ALLOWED, 0),
        (pycurl.NOSIGNAL, 1),
        (pycurl.PATH_AS_IS, 1),
        (pycurl.SSL_VERIFYPEER, 1),
        (pycurl.SSL_VERIFYHOST, 2),
        (pycurl.SSLVERSION, pycurl.SSLVERSION_TLSv1_2),
        (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_2TLS),
        # With PIPEWAIT, requests to one host would wait for the first request to that host, even if the host does not
        # speak HTTP/2.
        (pycurl.PIPEWAIT, 0),
        (pycurl.BUFFERSIZE, _BUFFER_BYTES),
        (pycurl.MAXAGE_CONN, _IDLE_SECONDS),
        (pycurl.MAXLIFETIME_CONN, _LIFETIME_SECONDS),
        (pycurl.LOW_SPEED_LIMIT, 1),
    )
    for option, value in fixed:
        handle.setopt(option, value)
    if ca_file is not None:
        handle.setopt(pycurl.CAINFO, ca_file)
    if proxy and proxy.login:
        handle.setopt(pycurl.PROXYUSERPWD, proxy.login)


_PARTIAL, _WRITE, _TIMEDOUT, _TOO_LARGE, _FILESIZE = 18, 23, 28, 100, 63
_WEIRD, _EMPTY, _SEND, _RECV, _VERIFY, _PROXY = 8, 52, 55, 56, 60, 97

CUT: Final = frozenset({_WRITE, _FILESIZE})
"""The errors of libcurl for a body that was cut at its limit."""

# curl's error number -> failure code, retryable, message
_CODES: Final[dict[int, tuple[str, bool, str]]] = {
    1: ("protocol_error", False, "The server's response is not HTTP."),
    3: ("invalid_url", False, "The URL cannot be requested."),
    5: ("dns_error", True, "The host name of the proxy could not be resolved."),
    6: ("dns_error", True, "The host name could not be resolved."),
    7: ("connect_error", True, "The server refused the connection."),
    _WEIRD: ("protocol_error", False, "The server's response is not valid HTTP."),
    16: ("protocol_error", True, "The server violated the HTTP/2 protocol."),
    _PARTIAL: ("protocol_error", True, "The body is shorter than the server announced."),
    35: ("tls_error", True, "The TLS connection failed."),
    43: ("protocol_error", False, "The server's response is not valid HTTP."),
    _EMPTY: ("empty_reply", True, "The server closed the connection without a response."),
    _SEND: ("connection_lost", True, "The connection was lost."),
    _RECV: ("connection_lost", True, "The connection was lost."),
    _VERIFY: ("tls_error", False, "The server's certificate is not valid."),
    61: ("protocol_error", False, "The server used a transfer encoding that was not requested."),
    77: ("tls_error", False, "The certificate authorities of this machine cannot be read."),
    92: ("protocol_error", True, "The server reset the HTTP/2 stream."),
    _PROXY: ("proxy_error", True, "The proxy refused the connection."),
    _TOO_LARGE: (
        "headers_too_large",
        False,
        "The headers are larger than SHOAL_MAX_HEADERS or SHOAL_MAX_HEADER_SIZE allows.",
    ),
}

_BAD_LINES: Final = {"Header without colon": "has no colon", "NUL byte in header": "has a NUL byte"}
_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,64}")

# OpenSSL's results of certificate verification
_TLS_EXPIRED: Final = 10
_TLS_SELF_SIGNED: Final = frozenset({18, 19})
_TLS_UNKNOWN_ISSUER: Final = frozenset({2, 20, 21})

_BLOCKED_MESSAGES: Final = {
    "address_not_public": "The host's address is not public.",
    "self_connection": "The address belongs to Shoal's own controller.",
    "port_not_allowed": "The port is not allowed.",
}


def refused(refusal: AddressRefusal, url: str) -> Failure:
    """Return the failure for an address that was refused; only operators see the address."""
    return Failure(
        refusal.code, _BLOCKED_MESSAGES[refusal.code], False, operator_detail=refusal.operator_detail, url=url
    )


def too_large(words: str, url: str, limits: Limits, *, status: int, announced: int) -> Failure:
    """Return the failure for a body that was cut at its limit. `announced`: the Content-Length, or 0."""
    body = f"its body of {announced:,} bytes" if announced > limits.max_body_bytes else "its body"
    message = (
        f"The server answered {status}, but {body} is larger than the limit of {show_size(limits.max_body_bytes)}, "
        f"which for pages is SHOAL_MAX_BODY and at most SHOAL_MAX_DECODED ({show_size(limits.max_decoded_bytes)})."
    )
    return Failure("body_too_large", message, False, operator_detail=words, url=url)


def explain(number: int, words: str, url: str, *, verify_result: int, last_line: bytes = b"") -> Failure:
    """Return the failure for an error of libcurl. The message of libcurl may name addresses, so it is for operators
    only. `last_line`: the last header line that libcurl passed on, which is the line before the rejected one."""
    code, retryable, message = _CODES.get(number, ("transport_error", True, "The transfer failed."))
    if number == _TIMEDOUT:
        code, retryable, message = _timeout(words)
    elif number == _VERIFY:
        code, message = _certificate(words, verify_result)
    elif words.startswith("CONNECT tunnel failed"):
        code, retryable, message = _CODES[_PROXY]
    elif number == _SEND and words.startswith("Connection died"):  # after several attempts, each on a new connection
        code, retryable, message = _CODES[_EMPTY]
    elif number == _WEIRD and words in _BAD_LINES:
        message = f"{_which_line(last_line)} {_BAD_LINES[words]}, so the response cannot be read."
    elif number == _RECV and "chunk" in words:
        code, retryable, message = _CODES[_WEIRD]
    elif number == _RECV and "response headers" in words:
        code, retryable, message = _CODES[_TOO_LARGE]
    return Failure(code, message, retryable, operator_detail=words, url=url)


def _which_line(before: bytes) -> str:
    """Describe the header line after `before`, whose field name is shown only if it is valid."""
    name = before.partition(b":")[0].decode("latin-1")
    if before.startswith(b"HTTP/"):
        return "The first header line"
    return f"The header line after {name}" if _NAME.fullmatch(name) else "A header line"


def _timeout(words: str) -> tuple[str, bool, str]:
    """Return which timeout expired. libcurl has a single error number for all timeouts, so its message is inspected."""
    if words.startswith("Operation too slow"):
        return "idle_timeout", True, "The server stopped sending in the middle of its response."
    if words.startswith("Operation timed out"):
        return "total_timeout", True, "The whole response took too long."
    return "connect_timeout", True, "The server could not be reached in time."


def _certificate(words: str, verify_result: int) -> tuple[str, str]:
    if verify_result == _TLS_EXPIRED:
        return "tls_expired", "The server's certificate has expired."
    if verify_result in _TLS_SELF_SIGNED:
        return "tls_self_signed", "The server's certificate is self-signed."
    if verify_result in _TLS_UNKNOWN_ISSUER:
        return "tls_unknown_issuer", "The server's certificate comes from an unknown authority."
    if "subject name" in words or "host name" in words:
        return "tls_wrong_host", "The server's certificate is for another host."
    return "tls_error", "The server's certificate is not valid."


# libcurl comes in a wheel that was built on a different system, and searches the paths of that system.
_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Alpine, Arch
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  # Fedora, RHEL
    "/etc/pki/tls/certs/ca-bundle.crt",  # older RHEL
    "/etc/ssl/ca-bundle.pem",  # openSUSE
    "/etc/ssl/cert.pem",  # macOS, BSD
)


@lru_cache(maxsize=1)
def machine_ca_file() -> str | None:
    """Return the path of the bundle to use on this machine."""
    return find_ca_file(os.environ, _BUNDLES)


def find_ca_file(env: Mapping[str, str], bundles: tuple[str, ...]) -> str | None:
    """Return the path in SSL_CERT_FILE, else the first existing bundle, else the bundle of certifi, else None for
    libcurl's default."""
    named = env.get("SSL_CERT_FILE")
    if named:
        return named
    found = next((path for path in bundles if Path(path).is_file()), None)
    return found or _certifi()


def _certifi() -> str | None:
    try:
        return str(importlib.import_module("certifi").where())
    except ImportError:
        return None
