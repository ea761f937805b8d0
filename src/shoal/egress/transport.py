"""Transfers of libcurl on the event loop."""

import asyncio
import contextlib
import os
import select
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

import pycurl

from shoal.egress.address import Proxy
from shoal.egress.curl import machine_ca_file
from shoal.egress.curl_handle import CurlHandle
from shoal.egress.exchange import Failure

if TYPE_CHECKING:
    from shoal.egress.egress import Exchange

_MOST_AT_ONCE: Final = 256
_IN, _OUT = pycurl.CSELECT_IN, pycurl.CSELECT_OUT

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
        if what == pycurl.POLL_REMOVE:
            # The socket stays registered, because the connection will be reused. If it becomes ready before that,
            # `_wake` unregisters it.
            self._wanted[fd] = 0
            return
        self._wanted[fd] = what
        events = (select.EPOLLIN if what & pycurl.POLL_IN else 0) | (select.EPOLLOUT if what & pycurl.POLL_OUT else 0)
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
        except pycurl.error as error:
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
        events = 0 if what == pycurl.POLL_REMOVE else what
        before, self._wanted[fd] = self._wanted.get(fd, 0), events
        loop = self._loop
        if loop is None:
            return
        if events & pycurl.POLL_IN and not before & pycurl.POLL_IN:
            loop.add_reader(fd, self._ready, fd, pycurl.CSELECT_IN)
        elif before & pycurl.POLL_IN and not events & pycurl.POLL_IN:
            loop.remove_reader(fd)
        if events & pycurl.POLL_OUT and not before & pycurl.POLL_OUT:
            loop.add_writer(fd, self._ready, fd, pycurl.CSELECT_OUT)
        elif before & pycurl.POLL_OUT and not events & pycurl.POLL_OUT:
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
        except pycurl.error as error:
            self._broken(error)
        self._settle()


_FREE_HANDLES: Final = 256
_IDLE_CONNECTIONS: Final = 256
_ROUNDS: Final = 16


class Transport:
    """All connections of one egress. It attaches to the event loop that is running when a transfer starts."""

    def __init__(self, proxy: Proxy | None = None) -> None:
        self._proxy = proxy
        self._ca_file = machine_ca_file()
        self._free: list[CurlHandle] = []
        self._active: dict[Any, CurlHandle] = {}  # by the handle of libcurl
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_after = 0
        self._is_interrupted = False
        self._is_settling = False
        self._is_closed = False
        self._open()

    def start(self, transfer: "Exchange") -> None:
        """Start a transfer. `finish` is not called before this returns."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._attach(loop)
        handle = self._free.pop() if self._free else CurlHandle(self._ca_file, self._proxy, self._on_opened)
        try:
            handle.configure(transfer)
            self._multi.add_handle(handle.easy)
        except (pycurl.error, ValueError) as error:
            handle.strip()
            self._free.append(handle)
            failure = Failure("invalid_request", "The request cannot be sent.", False, str(error), transfer.url)
            loop.call_soon(transfer.finish, failure)
        else:
            self._active[handle.easy] = handle

    def stop(self, transfer: "Exchange") -> None:
        """Stop a transfer, if it was started; its `finish` is not called."""
        handle = transfer.curl_handle
        if handle is not None:
            self._release(handle)

    def transfers(self) -> "list[Exchange]":
        """Return the transfers in flight."""
        return [handle.transfer for handle in self._active.values() if handle.transfer is not None]

    def close(self) -> None:
        """Close every connection. Transfers in flight are dropped, so finish them first."""
        if not self._is_closed:
            self._is_closed = True
            self._cancel_timer()
            self._close()
            for handle in self._free:
                handle.close()
            self._free.clear()

    def _open(self) -> None:
        self._multi: Any = pycurl.CurlMulti()  # its methods must not be called from inside its callbacks
        poller = EpollPoller if hasattr(select, "epoll") else LoopPoller
        self._watch: SocketPoller = poller(self._multi.socket_action, self._settle, self._begin_anew)
        self._multi.setopt(pycurl.M_MAXCONNECTS, _IDLE_CONNECTIONS)
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch.want)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._on_timer)

    def _close(self) -> None:
        for handle in list(self._active.values()):
            self._release(handle)
        self._multi.close()
        self._watch.close()

    def _attach(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._is_closed:
            raise RuntimeError("this egress is closed")
        self._cancel_timer()
        self._loop = loop
        self._is_interrupted = False
        self._watch.attach(loop)

    def _on_opened(self, fd: int, _purpose: int) -> int:
        os.set_inheritable(fd, False)
        self._watch.opened(fd)
        return 0

    def _on_timer(self, milliseconds: int) -> None:
        # This is a callback of libcurl, so functions of libcurl must not be called from here.
        if milliseconds > 0:
            self._arm(milliseconds)
        elif milliseconds == 0 and not self._is_interrupted:
            self._is_interrupted = True
            if not self._is_settling and self._loop is not None:
                self._loop.call_soon(self._settle)

    def _arm(self, milliseconds: int) -> None:
        # A timer that fires too early does nothing and is set again, which is cheaper than moving the timer each time.
        if self._timer is not None and milliseconds >= self._timer_after:
            return
        self._cancel_timer()
        if self._loop is not None:
            self._timer_after = milliseconds
            self._timer = self._loop.call_later(milliseconds / 1000, self._interrupt)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _interrupt(self) -> None:
        self._timer = None
        self._is_interrupted = True
        self._settle()
        # libcurl reports a deadline only when the deadline changes, so query it here in case the timer fired early.
        remaining = -1 if self._is_closed else self._multi.timeout()
        if remaining >= 0:
            self._arm(max(remaining, 1))

    def _settle(self) -> None:
        """Finish completed transfers and start new ones, until there is nothing left to do."""
        if self._is_settling or self._is_closed:
            return
        self._is_settling = True
        try:
            for _ in range(_ROUNDS):
                if self._is_interrupted:
                    self._is_interrupted = False
                    self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
                self._collect_finished()
                if not self._is_interrupted or self._is_closed:
                    return
        except pycurl.error as error:
            self._begin_anew(error)
        finally:
            self._is_settling = False
        if self._is_interrupted and self._loop is not None:
            self._loop.call_soon(self._settle)

    def _collect_finished(self) -> None:
        active = self._active
        _, succeeded, failed = self._multi.info_read()
        ended = [(handle := active[easy], handle.transfer, 0, "") for easy in succeeded]
        ended += [(handle := active[easy], handle.transfer, number, words) for easy, number, words in failed]
        for handle, transfer, number, words in ended:
            # The callback of a different transfer may have stopped this transfer, and its handle may already be reused.
            if transfer is not None and handle.transfer is transfer:
                self._finish(handle, transfer, number, words)

    def _finish(self, handle: CurlHandle, transfer: "Exchange", number: int, words: str) -> None:
        outcome = handle.failure(transfer, number, words) if number else handle.response(transfer)
        self._release(handle)
        try:
            transfer.finish(outcome)
        except Exception as fault:
            # An error in the caller's callback must not affect other transfers.
            if self._loop is not None:
                context = {"message": "the callback of a request failed", "exception": fault}
                self._loop.call_exception_handler(context)

    def _release(self, handle: CurlHandle) -> None:
        easy = handle.easy
        self._multi.remove_handle(easy)
        del self._active[easy]
        handle.strip()
        if len(self._free) < _FREE_HANDLES:
            self._free.append(handle)
        else:
            handle.close()

    def _begin_anew(self, error: Exception) -> None:
        """Recover from an error of libcurl itself: end all transfers with a failure and create a new multi handle."""
        failed = self.transfers()
        self._close()
        self._open()
        if self._loop is not None:
            self._watch.attach(self._loop)
        for transfer in failed:
            transfer.finish(Failure("transport_error", "The transfer failed.", True, str(error), transfer.url))
