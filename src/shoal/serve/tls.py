"""The TLS certificate of the controller: validated at start, and reloaded when its file was replaced."""

import ssl
from datetime import timedelta
from pathlib import Path

from shoal.base.errors import BadConfig
from shoal.base.service import PassResult
from shoal.base.settings import ServeSettings

CERT, KEY = "SHOAL_TLS_CERT", "SHOAL_TLS_KEY"
LOOK_EVERY = timedelta(seconds=10)


def tls_of(settings: ServeSettings) -> ssl.SSLContext | None:
    """Return a context for TLS 1.2 or newer with the configured certificate; None if there is none."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    if "BEGIN CERTIFICATE" not in _text(CERT, settings.tls_cert):
        raise BadConfig(
            CERT,
            f"names {settings.tls_cert}, which contains no certificate",
            "use a PEM file with the certificate chain",
        )
    key = _text(KEY, settings.tls_key)
    if "PRIVATE KEY" not in key:
        raise BadConfig(
            KEY, f"names {settings.tls_key}, which contains no private key", "use the PEM file of the private key"
        )
    if "ENCRYPTED" in key:
        raise BadConfig(
            KEY, f"names {settings.tls_key}, which is encrypted with a password", "use a copy without a password"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise BadConfig(KEY, f"does not match {CERT}", "use a certificate and its own key") from None
        problem = f"and {KEY} cannot be used together ({error.reason or error})"
        raise BadConfig(CERT, problem, "check both files with `openssl x509` and `openssl pkey`") from None
    return context


class Certificate:
    """A chore that reloads a replaced certificate. Open connections keep the old one. An invalid pair is reported, and
    the old one stays in use."""

    name = "certificate"

    def __init__(self, context: ssl.SSLContext, settings: ServeSettings) -> None:
        self._context = context
        self._settings = settings
        self._known = self._look()

    async def run_once(self) -> PassResult:
        found = self._look()
        if found == self._known:
            return PassResult()
        cert, key = self._settings.tls_cert, self._settings.tls_key
        tls_of(self._settings)  # validate first: loading half a pair would leave the context without a certificate
        if cert is not None:
            self._context.load_cert_chain(cert, key)
        self._known = found
        return PassResult("reloaded")

    def _look(self) -> list[tuple[int, int, int]]:
        """Return the file attributes that change when a file is replaced."""
        files = [path.stat() for path in (self._settings.tls_cert, self._settings.tls_key) if path is not None]
        return [(file.st_mtime_ns, file.st_ino, file.st_size) for file in files]


def _text(key: str, path: Path) -> str:
    try:
        return path.read_text("ascii", errors="replace")
    except OSError as error:
        why = (error.strerror or type(error).__name__).lower()
        raise BadConfig(key, f"names {path}, which cannot be read ({why})", "use a readable PEM file") from None
