"""The channel options that both ends of the control plane use: message sizes, keepalive pings, and how a stream reports
why it ends."""

from dataclasses import dataclass
from datetime import timedelta

LARGEST_MESSAGE = 64 * 1024  # bytes
DISPLACED = ("shoal-reason", "displaced")  # in the trailing metadata, so that a worker knows that it must not reconnect


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """How a stream without a live peer is noticed: a ping after `every` without traffic must be answered in time."""

    every: timedelta = timedelta(seconds=15)
    timeout: timedelta = timedelta(seconds=10)

    def options(self) -> list[tuple[str, int]]:
        return [
            ("grpc.keepalive_time_ms", int(self.every.total_seconds() * 1000)),
            ("grpc.keepalive_timeout_ms", int(self.timeout.total_seconds() * 1000)),
            # The minimum interval of all pings, including keepalive; the default is a minute, whatever the option above
            # says.
            ("grpc.http2.ping_timeout_ms", int(self.timeout.total_seconds() * 1000)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
        ]
