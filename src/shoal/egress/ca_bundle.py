"""Finds the bundle of trusted certificate authorities: the machine's own, else certifi's."""

import importlib
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

# libcurl comes in a wheel that was built on another system and searches the paths of that system.
_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Alpine, Arch
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  # Fedora, RHEL
    "/etc/pki/tls/certs/ca-bundle.crt",  # older RHEL
    "/etc/ssl/ca-bundle.pem",  # openSUSE
    "/etc/ssl/cert.pem",  # macOS, BSD
)


@lru_cache(maxsize=1)
def machine_ca_file() -> str | None:
    """Return the path of the bundle to use on this machine."""
    return find_ca_file(os.environ, _BUNDLES)


def find_ca_file(env: Mapping[str, str], bundles: tuple[str, ...]) -> str | None:
    """Return the path in SSL_CERT_FILE, else the first existing bundle, else certifi's, or None for libcurl's own."""
    named = env.get("SSL_CERT_FILE")
    if named:
        return named
    found = next((path for path in bundles if Path(path).is_file()), None)
    return found or _certifi()


def _certifi() -> str | None:
    try:
        return str(importlib.import_module("certifi").where())
    except ImportError:
        return None
