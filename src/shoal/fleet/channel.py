"""The settings that both ends of a session share: the channel options, and the authentication of nodes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from shoal.access.limits import AuthThrottle
from shoal.access.token import TokenScope
from shoal.access.tokens import FIRST_FIX, Tokens
from shoal.base.errors import NotAllowed, Unauthenticated
from shoal.base.ids import NodeId, TokenId
from shoal.base.parsing import is_loopback

LARGEST_MESSAGE = 64 * 1024  # bytes
# Sent in the trailing metadata, so that a worker knows that it must not reconnect.
DISPLACED = ("shoal-reason", "displaced")


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """The settings for noticing that the peer of a stream is gone. After `every` without traffic, a ping is sent, and
    the peer must respond to it within `timeout`."""

    every: timedelta = timedelta(seconds=15)
    timeout: timedelta = timedelta(seconds=10)

    def options(self) -> list[tuple[str, int]]:
        return [
            ("grpc.keepalive_time_ms", int(self.every.total_seconds() * 1000)),
            ("grpc.keepalive_timeout_ms", int(self.timeout.total_seconds() * 1000)),
            # The time limit for the response to any ping, including keepalive pings. gRPC's default is a minute, even
            # if the option above is shorter.
            ("grpc.http2.ping_timeout_ms", int(self.timeout.total_seconds() * 1000)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
        ]


AUTHORIZATION = "authorization"
FIX = "create a token with `shoal tokens create --role node --node-id ID --name NAME` and set it as SHOAL_NODE_TOKEN"
_BEARER = re.compile(r"bearer +([\x21-\x7e]+) *", re.IGNORECASE)


class NodeAuthenticator:
    """Checks the credentials with which a node registers."""

    def __init__(self, tokens: Tokens, throttle: AuthThrottle) -> None:
        self._tokens = tokens
        self._throttle = throttle

    async def admit(self, node_id: NodeId, metadata: Sequence[tuple[str, str | bytes]], address: str) -> TokenId | None:
        """Raise unless this node may register from this address. Return its token; None if it needs no token."""
        given = [value for key, value in metadata if key == AUTHORIZATION]
        if not given:
            if await self._tokens.any_made():
                raise Unauthenticated(FIX)
            if not is_loopback(address):
                raise Unauthenticated(f"{FIRST_FIX}; then {FIX}")
            return None
        match = _BEARER.fullmatch(given[0]) if len(given) == 1 and isinstance(given[0], str) else None
        if match is None:
            raise Unauthenticated(FIX)
        if not self._tokens.remembers(match[1]):
            self._throttle.check(address)
        token = await self._tokens.verify(match[1])
        if token is None:
            self._throttle.count(address)
            raise Unauthenticated(FIX)
        if TokenScope.NODE not in token.scopes or token.node_id != node_id:
            raise NotAllowed(f'this token may not register as node "{node_id}"', FIX)
        return token.id
