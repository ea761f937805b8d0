"""Authentication of nodes: a token with the scope `node`, bound to the id of the node.

As over HTTP, workers of this machine need no token until the first one is created.
"""

import re
from collections.abc import Sequence

from shoal.access.auth_throttle import AuthThrottle
from shoal.access.scopes import TokenScope
from shoal.access.tokens import FIRST_FIX, Tokens
from shoal.base.errors import NotAllowed, Unauthenticated
from shoal.base.ids import NodeId, TokenId
from shoal.base.parsing import is_loopback

AUTHORIZATION = "authorization"
FIX = "create a token with `shoal tokens create --role node --node-id ID --name NAME` and set it as SHOAL_NODE_TOKEN"
_BEARER = re.compile(r"bearer +([\x21-\x7e]+) *", re.IGNORECASE)


class NodeAuthenticator:
    """Checks the credentials with which a node registers."""

    def __init__(self, tokens: Tokens, throttle: AuthThrottle) -> None:
        self._tokens = tokens
        self._throttle = throttle

    async def admit(self, node_id: NodeId, metadata: Sequence[tuple[str, str | bytes]], address: str) -> TokenId | None:
        """Raise unless this node may register from this address; return its token, None if it needs none."""
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
