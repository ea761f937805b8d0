"""Operations on tokens: create, verify, list, revoke. The API enforces the scopes of tokens."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from hmac import compare_digest

from shoal.access.audit_log import AuditEntry, AuditLog
from shoal.access.store import TokenStore
from shoal.access.token import Caller, Token, TokenRequest, TokenScope, hash_of, in_order, may_give, mint, read_token
from shoal.base.clock import Clock, span
from shoal.base.database import Database, Tx
from shoal.base.errors import InvalidInput, NotAllowed, NotFound, ShoalError, StateConflict
from shoal.base.ids import TokenId
from shoal.base.parsing import read_duration
from shoal.base.service import PassResult
from shoal.base.signals import Signal, Signals
from shoal.base.text import plural

FRESH_SECONDS = 2.0  # how long a verified token is cached; revocations on other controllers may be this late
MOST_REMEMBERED = 1000
EXPIRED_LATELY = timedelta(days=2)  # longer than the longest lease of a bot's job
USED_EVERY = timedelta(minutes=1)  # interval at which the use of a token is recorded
FIRST_FIX = (
    "create an admin token first (`shoal tokens create --role admin --name NAME`) and keep it: once a token exists,"
    " every request and every node needs one"
)
NOBODY = hash_of("")  # if there is no such token, the hash is compared with this, so that the check takes equally long


class TokenUseNotRecorded(Signal, frozen=True, kw_only=True):
    """The store could not record the use of a token; the caller was accepted nevertheless."""

    token_id: str
    error: str


@dataclass(frozen=True, slots=True)
class NewToken:
    """A new token with its text, which is shown only once."""

    token: Token
    text: str


class Tokens:
    """Manages tokens. There is one instance per process, because it caches verified tokens for a moment."""

    def __init__(
        self,
        database: Database,
        audit_log: AuditLog,
        clock: Clock,
        signals: Signals,
        release: Callable[[TokenId, str], Awaitable[None]],
    ) -> None:
        """`release` returns the jobs of a revoked or expired token to the queue, with the reason."""
        self._database = database
        self._store = TokenStore()
        self._audit_log = audit_log
        self._clock = clock
        self._signals = signals
        self._release = release
        self._verified: OrderedDict[str, tuple[float, Token]] = OrderedDict()  # by hash
        self._any_made = False
        self._looked_at = -FRESH_SECONDS
        self._released: set[TokenId] = set()  # expired tokens

    async def create(self, request: TokenRequest, by: Caller) -> NewToken:
        """Create a token with at most the scopes of its creator. The first token must have the scope admin: from then
        on, every caller needs a token, and only admins can create further tokens."""
        scopes = request.wanted()
        lasts = None if request.expires_in is None else read_duration(request.expires_in)
        _check_scopes(scopes, by)
        facts = {
            "name": request.name,
            "scopes": in_order(scopes),
            "node_id": request.node_id,
            "expires_in": request.expires_in,
        }

        async def commit(tx: Tx) -> NewToken:
            if TokenScope.ADMIN not in scopes and not await self._store.any_made(tx):
                raise InvalidInput("role", "of the first token must be admin", FIRST_FIX)
            token, text = None, ""
            while token is None:
                token_id, text = mint()
                token = await self._store.insert(
                    tx, token_id, request.name, hash_of(text), scopes, by.who, lasts, request.node_id
                )
            _check_end(token, by)
            await self._audit_log.note_in(tx, by, AuditEntry("token.created", token.id, facts))
            return NewToken(token, text)

        minted = await self._database.run(commit)
        self._any_made = True
        return minted

    async def verify(self, text: str) -> Token | None:
        """Return the token with this text if it is valid; otherwise `None`, without the reason."""
        token_id = read_token(text)
        if token_id is None:
            return None
        hashed = hash_of(text)
        return self._remembered(hashed) or await self._look_up(token_id, hashed)

    async def ended(self, token_ids: Collection[TokenId]) -> set[TokenId]:
        """Return the tokens among these that were revoked or have expired. This always queries the store."""
        if not token_ids:
            return set()
        return await self._database.read(lambda tx: self._store.ended(tx, sorted(token_ids)))

    def remembers(self, text: str) -> bool:
        """Return whether this text was recently verified as a valid token."""
        return hash_of(text) in self._verified

    def _remembered(self, hashed: str) -> Token | None:
        at, token = self._verified.get(hashed, (0.0, None))
        return token if self._clock.monotonic() - at < FRESH_SECONDS else None

    async def _look_up(self, token_id: TokenId, hashed: str) -> Token | None:
        token = await self._database.read(lambda tx: self._store.valid(tx, token_id))
        if not compare_digest(hashed, NOBODY if token is None else token.hash) or token is None:
            self._verified.pop(hashed, None)
            return None
        self._verified[hashed] = (self._clock.monotonic(), token)
        self._verified.move_to_end(hashed)
        while len(self._verified) > MOST_REMEMBERED:
            self._verified.popitem(last=False)
        await self._note_use(token)
        return token

    async def _note_use(self, token: Token) -> None:
        if token.last_used_at is not None and token.seen_at - token.last_used_at < span(USED_EVERY):
            return
        try:
            await self._database.run(lambda tx: self._store.mark_used(tx, token.id, USED_EVERY))
        except ShoalError as error:
            self._signals.emit(TokenUseNotRecorded(token_id=token.id, error=error.message))

    async def any_made(self) -> bool:
        """Return whether a token was ever created: from then on every caller needs one. The store is queried at most
        every `FRESH_SECONDS`."""
        if not self._any_made and self._clock.monotonic() - self._looked_at >= FRESH_SECONDS:
            self._any_made = await self._database.read(self._store.any_made)
            self._looked_at = self._clock.monotonic()
        return self._any_made

    async def get(self, token_id: str) -> Token:
        token = await self._database.read(lambda tx: self._store.get(tx, token_id))
        if token is None:
            raise NotFound("token", token_id, "list them with `shoal tokens ls`")
        return token

    async def newest(self, *, before: int | None = None, limit: int = 50) -> list[Token]:
        return await self._database.read(lambda tx: self._store.page_of(tx, before, limit))

    async def revoke(self, token_id: str, by: Caller, *, even_last: bool = False) -> Token:
        """Revoke a token, on this controller immediately and on others within two seconds. Revoking it again changes
        nothing. The last valid admin token cannot be revoked unless `even_last` is set. The token's jobs return to the
        queue; if the store was unavailable at that moment, a repeated call returns them."""

        async def commit(tx: Tx) -> Token:
            admins = await self._store.lock_admins(tx)
            token = await self._store.get(tx, token_id)
            if token is None:
                raise NotFound("token", token_id, "list them with `shoal tokens ls`")
            if admins == [token.id] and not even_last:
                fix = "create another admin token first, or confirm with force (--yes)"
                raise StateConflict(
                    "token", token_id, "the last valid admin token", "be revoked without confirmation", fix
                )
            if await self._store.revoke(tx, token_id):
                await self._audit_log.note_in(tx, by, AuditEntry("token.revoked", token_id, {"name": token.name}))
            return token

        token = await self._database.run(commit)
        self._verified.pop(token.hash, None)
        await self._release(token.id, "token_revoked")
        return await self.get(token_id)

    async def release_expired(self) -> int:
        """Return the jobs of recently expired tokens to the queue, once for each token; return the number of these
        tokens."""
        expired = await self._database.read(lambda tx: self._store.expired(tx, EXPIRED_LATELY))
        fresh = expired - self._released
        for token_id in sorted(fresh):
            await self._release(token_id, "token_expired")
        self._released = expired
        return len(fresh)


class TokenJanitor:
    """Returns the jobs of bots whose tokens have expired. Such bots cannot send results, and their leases may last for
    hours."""

    name = "token_janitor"

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def run_once(self) -> PassResult:
        released = await self._tokens.release_expired()
        return PassResult(did=f"returned the jobs of {plural(released, 'expired token')}" if released else "")


def _check_scopes(scopes: frozenset[TokenScope], by: Caller) -> None:
    lacking = [scope for scope in in_order(scopes) if not may_give(by.scopes, scope)]
    if lacking:
        raise NotAllowed(
            f"a token can only give scopes that it has, and this one lacks {', '.join(lacking)}",
            "request fewer scopes, or use an admin token",
        )


def _check_end(token: Token, by: Caller) -> None:
    if by.until is not None and (token.expires_at is None or token.expires_at > by.until):
        problem = "is later than the expiry of your own token"
        raise InvalidInput("expires_in", problem, "choose an earlier time, or use a token that expires later")
