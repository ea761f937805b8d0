"""The entries of jobs in lanes on Redis: how a job, its queue and its place at its host are written."""

import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from shoal.queue.job import NODE, SHARED_LANE, LeaseRequest

GENERATION = "{shoal}:queue:tasks:generation"
"""The braces are part of all keys: a cluster puts them into one slot."""
WAKE = "{shoal}:queue:tasks:wake"
RANK_OFFSET = 1 << 62  # ranks may be negative; as text they must sort like numbers
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def queue_name(lane: str, kind: str, capability: str) -> str | None:
    """Return the name of a queue; None for one that Redis does not carry: the lanes of local crawls, and names that
    must not become part of a key."""
    if not (NAME.fullmatch(kind) and NAME.fullmatch(capability)):
        return None
    if lane == SHARED_LANE:
        return f"{kind}:{capability}"
    node = lane.removeprefix(NODE)
    return f"{kind}:{capability}:node:{node}" if node != lane and NAME.fullmatch(node) else None


def queues_by_lane(request: LeaseRequest) -> list[list[str]]:
    """Return the names of the queues that a request may lease from, for each of its lanes in their order."""
    return [
        [
            name
            for kind in request.kinds
            for capability in request.capabilities
            if (name := queue_name(lane, kind, capability)) is not None
        ]
        for lane in request.lanes
    ]


class LaneEntry(Struct, frozen=True):
    """A waiting job as its row says it."""

    job_id: str
    text: str

    @classmethod
    def of(cls, row: Any) -> "LaneEntry | None":
        """Return the entry of a row of `lane_entries`; None if Redis does not carry its lane."""
        name = queue_name(row["lane"], row["kind"], row["capability"])
        if name is None:
            return None
        job_id, rank, host = row["id"], row["rank"], row["host"]
        place = "" if host is None else f"{host}\t{rank + RANK_OFFSET:016x}\t{job_id}"
        return cls(job_id, f"{rank}\n{name}\n{place}")


def entries_of(rows: Sequence[Any]) -> list[LaneEntry]:
    return [entry for row in rows if (entry := LaneEntry.of(row)) is not None]


def read_place(place: bytes) -> tuple[str, int]:
    """Return the job and the rank of a place at a host."""
    _, rank, job_id = place.rsplit(b"\t", 2)
    return job_id.decode(), int(rank, 16) - RANK_OFFSET
