"""The Lua scripts: one file each, with a header that names KEYS, ARGV and the result.

Scripts treat payloads as opaque bytes, never use a name as a pattern, and get at most `BATCH` entries per call. A
script whose name begins with `frontier_` starts with `frontier.lua`, which holds what those scripts share.
"""

from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from pathlib import Path

BATCH = 1000  # entries per call: Redis serves nobody else while a script runs
FOLDER = Path(__file__).parent / "scripts"


@dataclass(frozen=True, slots=True)
class Script:
    """A script, and the name under which the server caches it."""

    name: str
    text: str
    sha: str


@cache
def load(name: str) -> Script:
    text = (FOLDER / f"{name}.lua").read_text(encoding="utf-8")
    shared = FOLDER / f"{name.partition('_')[0]}.lua"
    if shared.exists():
        text = f"{shared.read_text(encoding='utf-8')}\n{text}"
    return Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())
