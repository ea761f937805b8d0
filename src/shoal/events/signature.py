"""Signatures of the Standard Webhooks specification. Pure."""

import base64
import binascii
import hashlib
import hmac
import os

PREFIX = "whsec_"
SHORTEST, LONGEST = 24, 64  # bytes of a secret, as specified
FIX = f"give {PREFIX} and {SHORTEST} to {LONGEST} bytes in base64, or omit it to have one generated"


def new_secret() -> str:
    return PREFIX + base64.b64encode(os.urandom(32)).decode()


def check_secret(text: str) -> str:
    """Return the secret if it is valid; otherwise raise `ValueError` with the end of a sentence."""
    if not SHORTEST <= len(_key(text)) <= LONGEST:
        raise ValueError(f"is not a secret; {FIX}")
    return text


def sign(secrets: list[str], event_id: str, seconds: int, body: bytes) -> str:
    """Return the `webhook-signature` of a body: one signature for each secret that is valid now."""
    signed = b"%s.%d.%s" % (event_id.encode(), seconds, body)
    marks = [hmac.digest(_key(secret), signed, hashlib.sha256) for secret in secrets]
    return " ".join(f"v1,{base64.b64encode(mark).decode()}" for mark in marks)


def _key(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return b""
