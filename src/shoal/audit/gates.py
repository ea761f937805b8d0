"""Gates that are stored under a name, for crawls, policies and analyses."""

import re

from shoal.access.audit_log import AuditHook, no_audit
from shoal.audit.gate import Gate
from shoal.audit.store import GateStore, StoredGate
from shoal.base.database import Database, Tx
from shoal.base.errors import AlreadyExists, InvalidInput, NotFound, TooLarge

MOST_GATES = 200
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Gates:
    """Manages gates."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.store = GateStore()

    async def create(self, name: str, gate: Gate, *, audit: AuditHook = no_audit) -> StoredGate:
        """Store a gate under a new name."""
        return await self.put(name, gate, may_exist=False, audit=audit)

    async def put(self, name: str, gate: Gate, *, may_exist: bool = True, audit: AuditHook = no_audit) -> StoredGate:
        """Store a gate, replacing any gate of that name."""
        if not _NAME.fullmatch(name):
            raise InvalidInput("name", "is not a name", "give 1 to 64 letters, digits and `_.-`")

        async def write(tx: Tx) -> StoredGate:
            is_new = await self.store.put(tx, name, gate)
            if not is_new and not may_exist:
                raise AlreadyExists("gate", name, "replace it with PUT, or choose another name")
            if is_new and await self.store.count(tx) > MOST_GATES:
                raise TooLarge("the list of gates", f"{MOST_GATES} gates", "remove one first")
            await audit(tx, "gate.created" if is_new else "gate.replaced", name)
            stored = await self.store.get(tx, name)
            assert stored is not None, "it was stored in this transaction"
            return stored

        return await self._database.run(write)

    async def get(self, name: str) -> StoredGate:
        found = await self._database.read(lambda tx: self.store.get(tx, name))
        if found is None:
            raise NotFound("gate", name)
        return found

    async def check(self, name: str, called: str = "gate") -> None:
        """Refuse the name of a gate that does not exist, in the options of a crawl or a policy."""
        if await self._database.read(lambda tx: self.store.get(tx, name)) is None:
            raise InvalidInput(called, f'is "{name}", which does not exist', "create it with POST /api/v1/gates first")

    async def all(self) -> list[StoredGate]:
        return await self._database.read(self.store.all)

    async def delete(self, name: str, *, audit: AuditHook = no_audit) -> None:
        async def commit(tx: Tx) -> None:
            if not await self.store.delete(tx, name):
                raise NotFound("gate", name)
            await audit(tx, "gate.removed", name)

        await self._database.run(commit)
