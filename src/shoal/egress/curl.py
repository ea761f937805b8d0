"""A typed wrapper of pycurl: the handles and constants that the transport needs, without any logic of its own."""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, cast

import pycurl

Error: type[Exception] = pycurl.error
SOCKET_BAD: Final[int] = pycurl.SOCKET_BAD
SOCKET_TIMEOUT: Final[int] = pycurl.SOCKET_TIMEOUT
POLL_IN: Final[int] = pycurl.POLL_IN
POLL_OUT: Final[int] = pycurl.POLL_OUT
POLL_REMOVE: Final[int] = pycurl.POLL_REMOVE
CSELECT_IN: Final[int] = pycurl.CSELECT_IN
CSELECT_OUT: Final[int] = pycurl.CSELECT_OUT

URL: Final[int] = pycurl.URL
HTTPHEADER: Final[int] = pycurl.HTTPHEADER
RESOLVE: Final[int] = pycurl.RESOLVE
TIMEOUT_MS: Final[int] = pycurl.TIMEOUT_MS
CONNECTTIMEOUT_MS: Final[int] = pycurl.CONNECTTIMEOUT_MS
LOW_SPEED_LIMIT: Final[int] = pycurl.LOW_SPEED_LIMIT
LOW_SPEED_TIME: Final[int] = pycurl.LOW_SPEED_TIME
MAXFILESIZE: Final[int] = pycurl.MAXFILESIZE_LARGE
NOBODY: Final[int] = pycurl.NOBODY
CUSTOMREQUEST: Final[int] = pycurl.CUSTOMREQUEST
POSTFIELDS: Final[int] = pycurl.POSTFIELDS
PATH_AS_IS: Final[int] = pycurl.PATH_AS_IS
AWS_SIGV4: Final[int] = pycurl.AWS_SIGV4
USERPWD: Final[int] = pycurl.USERPWD
WRITEFUNCTION: Final[int] = pycurl.WRITEFUNCTION
HEADERFUNCTION: Final[int] = pycurl.HEADERFUNCTION
OPENSOCKETFUNCTION: Final[int] = pycurl.OPENSOCKETFUNCTION
SOCKOPTFUNCTION: Final[int] = pycurl.SOCKOPTFUNCTION

RESPONSE_CODE: Final[int] = pycurl.RESPONSE_CODE
TOTAL_TIME: Final[int] = pycurl.TOTAL_TIME
PRIMARY_IP: Final[int] = pycurl.PRIMARY_IP
SSL_VERIFYRESULT: Final[int] = pycurl.SSL_VERIFYRESULT

# Most pages are smaller than this, so they need one read and one callback instead of several.
_BUFFER_BYTES: Final = 128 * 1024
_SUPPRESS_CONNECT_HEADERS: Final = 265  # CURLOPT_…, for which pycurl has no constant
_IDLE_SECONDS: Final = 30
_LIFETIME_SECONDS: Final = 600


class SocketAddress(Protocol):
    """The address to which libcurl is about to open a socket; `addr` starts with address and port."""

    family: int
    socktype: int
    protocol: int
    addr: tuple[str, int] | tuple[str, int, int, int]


class Easy(Protocol):
    """An easy handle: one transfer at a time, reusable."""

    def setopt(self, option: int, value: object) -> None: ...
    def unsetopt(self, option: int) -> None: ...
    def getinfo(self, info: int) -> Any: ...
    def reset(self) -> None: ...
    def close(self) -> None: ...


class Multi(Protocol):
    """All transfers of one transport. Its methods must not be called from inside its callbacks."""

    def setopt(self, option: int, value: object) -> None: ...
    def add_handle(self, easy: Easy) -> None: ...
    def remove_handle(self, easy: Easy) -> None: ...
    def socket_action(self, fd: int, events: int) -> tuple[int, int]: ...
    def info_read(self) -> tuple[int, list[Any], list[tuple[Any, int, str]]]: ...
    def timeout(self) -> int: ...
    def close(self) -> None: ...


def easy() -> Easy:
    return cast("Easy", pycurl.Curl())


def multi(*, idle_connections: int) -> Multi:
    handle = pycurl.CurlMulti()
    handle.setopt(pycurl.M_MAXCONNECTS, idle_connections)
    return cast("Multi", handle)


def listen(
    handle: Multi, on_socket: Callable[[int, int, object, object], None], on_timer: Callable[[int], None]
) -> None:
    """Register the callbacks for the sockets to wait for and for the timeout."""
    handle.setopt(pycurl.M_SOCKETFUNCTION, on_socket)
    handle.setopt(pycurl.M_TIMERFUNCTION, on_timer)


def lock_down(handle: Easy, *, ca_file: str | None, proxy: str, proxy_login: str) -> None:
    """Set the options that never change, beginning with those that switch off libcurl's own behaviour."""
    fixed: Sequence[tuple[int, object]] = (
        (pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS),
        (pycurl.FOLLOWLOCATION, 0),
        (pycurl.NETRC, 0),
        (pycurl.USERAGENT, ""),  # otherwise pycurl sends its own name
        (pycurl.PROXY, proxy),  # an empty string also disables the proxies of the environment
        (pycurl.NOPROXY, ""),
        (_SUPPRESS_CONNECT_HEADERS, 1),
        (pycurl.HTTP09_ALLOWED, 0),
        (pycurl.NOSIGNAL, 1),
        (PATH_AS_IS, 1),
        (pycurl.SSL_VERIFYPEER, 1),
        (pycurl.SSL_VERIFYHOST, 2),
        (pycurl.SSLVERSION, pycurl.SSLVERSION_TLSv1_2),
        (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_2TLS),
        # Otherwise requests to one host would queue behind the first, whether or not the host speaks HTTP/2.
        (pycurl.PIPEWAIT, 0),
        (pycurl.BUFFERSIZE, _BUFFER_BYTES),
        (pycurl.MAXAGE_CONN, _IDLE_SECONDS),
        (pycurl.MAXLIFETIME_CONN, _LIFETIME_SECONDS),
        (LOW_SPEED_LIMIT, 1),
    )
    for option, value in fixed:
        handle.setopt(option, value)
    if ca_file is not None:
        handle.setopt(pycurl.CAINFO, ca_file)
    if proxy_login:
        handle.setopt(pycurl.PROXYUSERPWD, proxy_login)
