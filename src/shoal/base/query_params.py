"""Query parameters to ignore when comparing URLs: the built-in lists, and the parser for user-defined names.

The code that removes the parameters is in `base.url`.
"""

import re
from collections.abc import Callable
from typing import Final

from shoal.base.text import shorten

TRACKING: Final = (
    "utm_*",  # Google Analytics and its imitators
    "mtm_*",  # Matomo
    "pk_*",  # Matomo, older
    "hsa_*",  # HubSpot ads
    "_hsenc",  # HubSpot
    "_hsmi",  # HubSpot
    "gclid",  # Google Ads
    "gclsrc",  # Google Ads
    "dclid",  # Google Display
    "gbraid",  # Google Ads
    "wbraid",  # Google Ads
    "_ga",  # Google Analytics
    "_gl",  # Google Analytics
    "fbclid",  # Meta
    "igshid",  # Instagram
    "msclkid",  # Microsoft
    "yclid",  # Yandex
    "ysclid",  # Yandex
    "twclid",  # X
    "ttclid",  # TikTok
    "li_fat_id",  # LinkedIn
    "mc_cid",  # Mailchimp
    "mc_eid",  # Mailchimp
    "mkt_tok",  # Marketo
    "vero_id",  # Vero
    "oly_anon_id",  # Omeda
    "oly_enc_id",  # Omeda
    "wickedid",  # Wicked Reports
)
"""Query parameters that tell where a visitor came from and do not change the page. `NAME*` matches a prefix."""

SESSION: Final = (
    "jsessionid",  # Java
    "phpsessid",  # PHP
    "aspsessionid*",  # ASP
    "asp.net_sessionid",  # ASP.NET
    "sessionid",
    "session_id",
    "sessid",
    "sid",
    "cfid",  # ColdFusion
    "cftoken",  # ColdFusion
    "oscsid",  # osCommerce
    "zenid",  # Zen Cart
)
"""Query parameters, and `;name=value` path parameters, that identify a session and not a page."""

NAME: Final = re.compile(r"(?=.)[A-Za-z0-9_.~!$'()\[\]:@%-]{0,100}\*?")


def read_name(value: object) -> str:
    """Parse the name of a parameter as it appears in URLs, or a prefix followed by `*`."""
    if not isinstance(value, str):
        raise ValueError("is not a parameter name")
    name = value.strip()
    if not NAME.fullmatch(name):
        raise ValueError(f'contains "{shorten(name)}", which is not a valid parameter name')
    return name.lower()


def reader_of(built_in: tuple[str, ...]) -> Callable[[object], tuple[str, ...]]:
    """Return a parser of name lists. A list replaces the built-in list, a list after a `+` extends the built-in list,
    and `none` is the empty list."""

    def read(value: object) -> tuple[str, ...]:
        text = value.strip() if isinstance(value, str) else value
        if text == "none":
            return ()
        if isinstance(text, str):
            more = text.startswith("+")
            names = [part for part in re.split(r"[,\s]+", text.removeprefix("+")) if part]
            return tuple(dict.fromkeys((*(built_in if more else ()), *map(read_name, names))))
        if not isinstance(text, list | tuple):
            raise ValueError("is not a list of names")
        return tuple(dict.fromkeys(map(read_name, text)))

    return read
