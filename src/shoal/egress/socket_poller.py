"""Waits for sockets on the running event loop and reports which are ready; the transport acts on them.

One wake-up of the loop serves every ready socket: the loop watches a single epoll descriptor, which makes a
request about half as expensive as with one reader per socket. A socket stays registered between two
requests of a connection, so most requests need no system call here.
"""

import asyncio
import contextlib
import select
from collections.abc import Callable
from typing import Final, Protocol

from shoal.egress import curl

_MOST_AT_ONCE: Final = 256
_IN, _OUT = curl.CSELECT_IN, curl.CSELECT_OUT

Act = Callable[[int, int], object]


class SocketPoller(Protocol):
    """Calls `act` for each ready socket, and `settle` once after each wake-up."""

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Switch to this event loop."""

    def want(self, what: int, fd: int, _multi: object = None, _data: object = None) -> None:
        """Register the events that libcurl wants for a socket."""

    def opened(self, fd: int) -> None:
        """Discard the state of a descriptor that is now used by a new socket."""

    def close(self) -> None: ...


def new_poller(act: Act, settle: Callable[[], None], broken: Callable[[Exception], None]) -> SocketPoller:
    """Return the cheapest poller that this system supports."""
    if hasattr(select, "epoll"):
        return EpollPoller(act, settle, broken)
    return LoopPoller(act, settle, broken)


class EpollPoller:
    """All sockets behind one epoll descriptor."""

    def __init__(self, act: Act, settle: Callable[[], None], broken: Callable[[Exception], None]) -> None:
        self._act = act
        self._settle = settle
        self._broken = broken
        self._epoll = select.epoll()
        self._wanted: dict[int, int] = {}
        self._registered: dict[int, int] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._detach()
        self._loop = loop
        loop.add_reader(self._epoll.fileno(), self._wake)

    def want(self, what: int, fd: int, _multi: object = None, _data: object = None) -> None:
        if what == curl.POLL_REMOVE:
            # Stay registered, since the connection will be reused. If it becomes ready meanwhile, _wake unregisters it.
            self._wanted[fd] = 0
            return
        self._wanted[fd] = what
        events = (select.EPOLLIN if what & curl.POLL_IN else 0) | (select.EPOLLOUT if what & curl.POLL_OUT else 0)
        before = self._registered.get(fd)
        if before == events:
            return
        if before is None:
            self._epoll.register(fd, events)
        else:
            self._epoll.modify(fd, events)
        self._registered[fd] = events

    def opened(self, fd: int) -> None:
        # Closing the old socket with this descriptor has unregistered it.
        self._registered.pop(fd, None)
        self._wanted.pop(fd, None)

    def close(self) -> None:
        self._detach()
        self._epoll.close()

    def _detach(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._epoll.fileno())
        self._loop = None

    def _wake(self) -> None:
        act, wanted, out = self._act, self._wanted, select.EPOLLOUT
        try:
            for fd, events in self._epoll.poll(0, _MOST_AT_ONCE):
                if wanted.get(fd):
                    act(fd, (_IN if events & ~out else 0) | (_OUT if events & out else 0))
                else:
                    self._forget(fd)
        except curl.Error as error:
            self._broken(error)
        self._settle()

    def _forget(self, fd: int) -> None:
        if self._registered.pop(fd, None) is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(fd)


class LoopPoller:
    """One reader or writer of the loop per socket, for systems without epoll."""

    def __init__(self, act: Act, settle: Callable[[], None], broken: Callable[[Exception], None]) -> None:
        self._act = act
        self._settle = settle
        self._broken = broken
        self._wanted: dict[int, int] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self.close()
        self._loop = loop

    def want(self, what: int, fd: int, _multi: object = None, _data: object = None) -> None:
        events = 0 if what == curl.POLL_REMOVE else what
        before, self._wanted[fd] = self._wanted.get(fd, 0), events
        loop = self._loop
        if loop is None:
            return
        if events & curl.POLL_IN and not before & curl.POLL_IN:
            loop.add_reader(fd, self._ready, fd, curl.CSELECT_IN)
        elif before & curl.POLL_IN and not events & curl.POLL_IN:
            loop.remove_reader(fd)
        if events & curl.POLL_OUT and not before & curl.POLL_OUT:
            loop.add_writer(fd, self._ready, fd, curl.CSELECT_OUT)
        elif before & curl.POLL_OUT and not events & curl.POLL_OUT:
            loop.remove_writer(fd)

    def opened(self, fd: int) -> None:
        self._wanted.pop(fd, None)

    def close(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            for fd in self._wanted:
                self._loop.remove_reader(fd)
                self._loop.remove_writer(fd)
        self._wanted.clear()
        self._loop = None

    def _ready(self, fd: int, events: int) -> None:
        try:
            self._act(fd, events)
        except curl.Error as error:
            self._broken(error)
        self._settle()
