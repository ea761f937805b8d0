"""Gates on SQL."""

from typing import Any

import orjson

from shoal.audit.gate import Gate, read_gate
from shoal.audit.store import StoredGate
from shoal.base.database import Tx
from shoal.store.sql.analyses import written_gate


class SqlGateStore:
    """Implements `audit.store.GateStore`."""

    async def put(self, tx: Tx, name: str, gate: Gate) -> bool:
        is_new = await self.get(tx, name) is None
        await tx.execute("put_gate", name=name, rules=written_gate(gate))
        return is_new

    async def get(self, tx: Tx, name: str) -> StoredGate | None:
        row = await tx.one("gate_by_name", name=name)
        return None if row is None else _gate(row)

    async def all(self, tx: Tx) -> list[StoredGate]:
        return [_gate(row) for row in await tx.all("all_gates")]

    async def delete(self, tx: Tx, name: str) -> bool:
        return await tx.execute("delete_gate", name=name) == 1


def _gate(row: Any) -> StoredGate:
    return StoredGate(row["name"], read_gate(orjson.loads(row["rules"])), row["created_at"], row["changed_at"])
