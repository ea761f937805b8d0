"""How one reader sees the console: language, theme and rights."""

from dataclasses import dataclass
from typing import Final, Literal, get_args

from starlette.requests import Request

from shoal.access.token import LOCAL, Caller, TokenScope, allows
from shoal.serve.console.messages import Language, languages, preferred

Theme = Literal["system", "light", "dark"]
THEMES: Final[tuple[Theme, ...]] = get_args(Theme)
COOKIE: Final = "shoal_view"  # the preferences of a browser, as `theme.language`


@dataclass(frozen=True, slots=True)
class View:
    """The language, the theme and the rights of a reader. Equal views see the same page."""

    language: Language
    theme: Theme = "system"
    may_write: bool = False
    may_administer: bool = False
    is_signed_in: bool = False

    @property
    def key(self) -> tuple[str, bool, bool]:
        """The values that the live regions of a page depend on."""
        return self.language.code, self.may_write, self.may_administer


def view_of(request: Request) -> View:
    """Return the view of a request: preferences from the cookie, else from the browser; rights from the caller."""
    theme, _, code = request.cookies.get(COOKIE, "").partition(".")
    language = languages().get(code) or preferred(request.headers.get("accept-language", ""))
    caller = getattr(request.state, "caller", None)
    scopes = caller.scopes if isinstance(caller, Caller) else frozenset[TokenScope]()
    return View(
        language=language,
        theme=next((known for known in THEMES if known == theme), "system"),
        may_write=allows(scopes, TokenScope.WRITE),
        may_administer=allows(scopes, TokenScope.ADMIN),
        is_signed_in=isinstance(caller, Caller) and caller.who != LOCAL,
    )
