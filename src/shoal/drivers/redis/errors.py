"""Translates the errors of Redis into ours. Each answer that an operator can act on names the fix."""

import re

import redis.exceptions as foreign

from shoal.base.errors import BackendUnavailable, RedisMisconfigured, ShoalError

MEMORY = "raise its limit, such as with `redis-cli CONFIG SET maxmemory 4gb`, or remove crawls that have ended"
PRIMARY = "it is a replica: point REDIS_URL at the primary; the next call connects again"
PASSWORD = "put the password into REDIS_URL, such as redis://:password@host:6379/0"
PERMISSION = "give the user of REDIS_URL the rights `~scan:* ~{shoal}:* +@all -@admin`"
CLUSTER = "point REDIS_URL at a server that is not part of a cluster, or at a proxy in front of the cluster"

MISCONFIGURED = {
    "NOAUTH": ("wants a password", PASSWORD),
    "WRONGPASS": ("refuses the user or the password", PASSWORD),
    "NOPERM": ("refuses a command to this user", PERMISSION),
    "MOVED": ("is a node of a cluster", CLUSTER),
    "ASK": ("is a node of a cluster", CLUSTER),
    "CROSSSLOT": ("is a node of a cluster", CLUSTER),
}
"""Errors that only the operator can fix."""

TEMPORARY = {
    "LOADING": ("it is loading its data", "wait until it has started"),
    "BUSY": ("a script of somebody else is running", "wait, or end it with `redis-cli SCRIPT KILL`"),
    "READONLY": ("it does not accept writes", PRIMARY),
    "MASTERDOWN": ("it has lost its primary", "check the primary"),
    "CLUSTERDOWN": ("its cluster is down", "check the cluster"),
    "TRYAGAIN": ("its cluster is moving keys", "wait until that is done"),
    "OOM": ("it has reached its memory limit", MEMORY),
    "MISCONF": ("it cannot save its data", "check its disk and its log"),
    "NOREPLICAS": ("it has too few replicas to accept writes", "check its replicas"),
}
"""Errors that may be temporary: the caller tries again later."""


CLASSES = {
    foreign.AuthenticationError: "NOAUTH",
    foreign.NoPermissionError: "NOPERM",
    foreign.ReadOnlyError: "READONLY",
    foreign.OutOfMemoryError: "OOM",
    foreign.BusyLoadingError: "LOADING",
    foreign.MasterDownError: "MASTERDOWN",
    foreign.ClusterDownError: "CLUSTERDOWN",
    foreign.ClusterCrossSlotError: "CROSSSLOT",
    foreign.TryAgainError: "TRYAGAIN",
    foreign.MovedError: "MOVED",
    foreign.AskError: "ASK",
}
"""Answers for which redis-py has a class, which then lack their first word."""

PHRASES = {
    "invalid username-password pair": "WRONGPASS",
    "ACL failure in script": "NOPERM",
    "The user executing the script can't run": "NOPERM",
}
IN_SCRIPT = re.compile(r"user_script: ?\d+: -?([A-Z]+) ")  # how Redis 6.2 reports what a call of a script answered


def code_of(error: Exception) -> str:
    """Return the code of the server's answer: its first word, unless redis-py or a script has hidden it."""
    words = str(error)
    for phrase, code in PHRASES.items():
        if phrase in words:
            return code
    for kind, code in CLASSES.items():
        if isinstance(error, kind):
            return code
    inside = IN_SCRIPT.search(words)
    return inside[1] if inside else words.partition(" ")[0].upper()


def translated(name: str, error: Exception) -> ShoalError:
    """Return our error for one of redis-py, of the socket, or of a call that took too long."""
    code = code_of(error)
    if code in MISCONFIGURED:
        return RedisMisconfigured(name, *MISCONFIGURED[code])
    if code in TEMPORARY:
        return BackendUnavailable(name, *TEMPORARY[code])
    if isinstance(error, foreign.TimeoutError | TimeoutError):
        return BackendUnavailable(name, "it did not answer in time", "check the server and the network")
    if isinstance(error, foreign.ResponseError):
        return BackendUnavailable(name, f"it refused a call: {error}", "check its version and its log")
    why = str(error).rstrip(".") or type(error).__name__
    return BackendUnavailable(name, why, "check that it is running and that REDIS_URL is correct")
