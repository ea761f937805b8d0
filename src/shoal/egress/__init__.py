"""Egress, which sends every outgoing request: SSRF protection, resolver, transport, limits, redirects."""

from shoal.egress.address import AddressRule, Endpoint, Proxies, Proxy, endpoint, listening
from shoal.egress.egress import Egress, Exchange
from shoal.egress.exchange import (
    PUBLIC_HEADERS,
    Failure,
    HeaderPairs,
    Headers,
    Hop,
    Limits,
    Outcome,
    Request,
    Response,
    Signer,
)
from shoal.egress.redirect import PLAIN_URLS, REDIRECTS, AtHop, Cancellable, Done, circular, endless, leads_to
from shoal.egress.resolver import Resolver, is_local

__all__ = [
    "PLAIN_URLS",
    "PUBLIC_HEADERS",
    "REDIRECTS",
    "AddressRule",
    "AtHop",
    "Cancellable",
    "Done",
    "Egress",
    "Endpoint",
    "Exchange",
    "Failure",
    "HeaderPairs",
    "Headers",
    "Hop",
    "Limits",
    "Outcome",
    "Proxies",
    "Proxy",
    "Request",
    "Resolver",
    "Response",
    "Signer",
    "circular",
    "endless",
    "endpoint",
    "is_local",
    "leads_to",
    "listening",
]
