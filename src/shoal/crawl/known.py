"""The keys that this walker brought to the store: exact and bounded. What is not here is asked of the store."""

MOST = 500_000  # keys of one generation: about 60 MB for two


class KnownKeys:
    """Two generations of keys: when the young one is full it becomes the old one, and the old one is forgotten.

    Only keys that were reported to the store are here, so "known" is never wrong; "unknown" only costs a question.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._young: set[tuple[int, int]] = set()
        self._old: set[tuple[int, int]] = set()

    def add(self, key: int, chk: int) -> bool:
        """Whether the key was unknown; it is known from now on."""
        both = (key, chk)
        if both in self._young:
            return False
        self._young.add(both)
        if len(self._young) >= self._most:
            self._old, self._young = self._young, set()
        return both not in self._old
