"""Resolves names to addresses, with a short cache per host, and returns the name and addresses of this machine. The
address rule decides which addresses are allowed.

The system's resolver blocks, so it runs in a few separate threads. They are daemon threads, because a name server that
does not respond must not keep a program from exiting.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from typing import Final

from shoal.base.clock import Clock
from shoal.egress.address import Address
from shoal.egress.exchange import Failure

Answer = tuple[str, ...] | Failure
Lookup = Callable[[str], tuple[str, ...]]

THREADS = 8
MOST_KNOWN = 10_000  # names in the cache
_FINAL: Final = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})


def system_lookup(host: str) -> tuple[str, ...]:
    """Return every address of a name, in the system's order of preference. Blocks."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


class Resolver:
    """The resolver of one egress. Concurrent requests for one host share one lookup."""

    def __init__(
        self,
        clock: Clock,
        *,
        lookup: Lookup = system_lookup,
        ttl: timedelta = timedelta(seconds=60),
        failure_ttl: timedelta = timedelta(seconds=5),
        timeout: timedelta = timedelta(seconds=10),
    ) -> None:
        self._clock = clock
        self._lookup = lookup
        self._ttl = ttl.total_seconds()
        self._failure_ttl = failure_ttl.total_seconds()
        self._timeout = timeout.total_seconds()
        self._known: dict[str, tuple[float, Answer]] = {}
        self._waiting: dict[str, list[Callable[[Answer], None]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool = _Threads(THREADS)

    def resolve(self, host: str, done: Callable[[Answer], None]) -> None:
        """Call `done` with the answer: immediately if the answer is cached, else later from the event loop."""
        self._attach(asyncio.get_running_loop())
        known = self._known.get(host)
        if known is not None and known[0] > self._clock.monotonic():
            done(known[1])
        elif host in self._waiting:
            self._waiting[host].append(done)
        else:
            self._waiting[host] = [done]
            self._ask(host)

    def close(self) -> None:
        """Stop the threads. Pending callbacks are not called."""
        self._waiting.clear()
        self._pool.stop()

    def _attach(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is self._loop:
            return
        # Pending callbacks belong to the previous event loop and can no longer be called.
        self.close()
        self._pool = _Threads(THREADS)
        self._loop = loop

    def _ask(self, host: str) -> None:
        assert self._loop is not None
        loop, waiting = self._loop, self._waiting[host]
        timer = loop.call_later(self._timeout, self._give_up, host, waiting)

        def answer() -> None:
            found = self._look_up(host)
            with contextlib.suppress(RuntimeError):  # the loop is closed, so no callback is pending
                loop.call_soon_threadsafe(self._answered, host, waiting, timer, found)

        self._pool.submit(answer)

    def _look_up(self, host: str) -> Answer:
        """Look up a host; runs in a thread."""
        try:
            return self._lookup(host) or _not_found(host, "it has no address", retryable=False)
        except socket.gaierror as error:
            return _not_found(host, str(error), retryable=error.errno not in _FINAL)
        except (OSError, UnicodeError) as error:
            return _not_found(host, str(error), retryable=False)

    def _answered(
        self, host: str, waiting: list[Callable[[Answer], None]], timer: asyncio.TimerHandle, answer: Answer
    ) -> None:
        self._pool.release()
        timer.cancel()
        ttl = self._failure_ttl if isinstance(answer, Failure) else self._ttl
        self._remember(host, self._clock.monotonic() + ttl, answer)
        self._tell(host, waiting, answer)

    def _give_up(self, host: str, waiting: list[Callable[[Answer], None]]) -> None:
        self._tell(host, waiting, _not_found(host, "the name server does not respond", retryable=True))

    def _tell(self, host: str, waiting: list[Callable[[Answer], None]], answer: Answer) -> None:
        if self._waiting.get(host) is waiting:
            del self._waiting[host]
        callbacks, waiting[:] = waiting[:], []
        for done in callbacks:
            done(answer)

    def _remember(self, host: str, until: float, answer: Answer) -> None:
        self._known.pop(host, None)
        if len(self._known) >= MOST_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[host] = (until, answer)


def _not_found(host: str, why: str, *, retryable: bool) -> Failure:
    return Failure("dns_error", "The host name could not be resolved.", retryable, f"{host}: {why}")


class _Threads:
    """A thread pool that starts its threads on demand."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._started = 0
        self._busy = 0

    def submit(self, job: Callable[[], None]) -> None:
        self._busy += 1
        self._work.put(job)
        if self._busy > self._started < self._most:
            self._started += 1
            threading.Thread(target=partial(_run_jobs, self._work), name="shoal-resolver", daemon=True).start()

    def release(self) -> None:
        """Record that a task of the pool has finished."""
        self._busy -= 1

    def stop(self) -> None:
        for _ in range(self._started):
            self._work.put(None)
        self._started = 0


def _run_jobs(work: "SimpleQueue[Callable[[], None] | None]") -> None:
    while (job := work.get()) is not None:
        job()


def is_local(address: Address) -> bool:
    """Return whether a socket on this machine can be bound to this address."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((str(address), 0))
        return True
    return False


def machine() -> str:
    """Return the name of this machine or, in a container, of the container, because a container has its own loopback
    interface."""
    return socket.gethostname()


def known_addresses() -> list[str]:
    """Return the addresses to which the name of this machine resolves, because other machines may use these
    addresses."""
    with contextlib.suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(machine(), None)
        return sorted({str(info[4][0]).partition("%")[0] for info in found})
    return []
