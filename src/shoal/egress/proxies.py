"""The proxies that the operator configured. Callers refer to them by label and never see their addresses."""

from collections.abc import Iterable
from dataclasses import replace

from shoal.base.errors import InvalidInput
from shoal.base.parsing import LabelledProxy
from shoal.egress.address import AddressRule
from shoal.egress.proxy import Proxy


class Proxies:
    def __init__(self, labelled: Iterable[LabelledProxy] = ()) -> None:
        self._urls = {one.label: one.url for one in labelled}

    def check(self, label: str | None, field: str) -> None:
        """Reject a label that is not configured."""
        if label is None or label in self._urls:
            return
        known = f"use {', '.join(sorted(self._urls))}, or" if self._urls else "leave it out, or"
        raise InvalidInput(
            field, f"{label!r} is not the label of a configured proxy", f"{known} define it in SHOAL_PROXIES"
        )

    def find(self, label: str) -> Proxy | None:
        """Return the proxy with that label; any address is allowed, since the operator configured it. None if only bots
        know its address, or the label is unknown."""
        if not self._urls.get(label):
            return None
        proxy = Proxy.parse(self._urls[label], AddressRule())
        return replace(proxy, rule=AddressRule(named=frozenset({(proxy.host, proxy.port)})))
