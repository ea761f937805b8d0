"""The login page of the console: it takes a token and stores it in a cookie that is sent only to this server."""

from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from shoal import __version__
from shoal.access.scopes import TokenScope, allows
from shoal.base.errors import NotAllowed, RateLimited, ShoalError, TooLarge, Unauthenticated
from shoal.serve.authentication import TokenAuthenticator, address_of, cookie_name, is_secure
from shoal.serve.console import FRESH, templates

LONGEST_FORM = 4096


class Login:
    """`/login` and `/logout`."""

    def __init__(self, authenticator: TokenAuthenticator) -> None:
        self._authenticator = authenticator
        self._page = templates().get_template("login.html")

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/login", self.show, methods=["GET"]),
            Route("/login", self.enter, methods=["POST"]),
            Route("/logout", self.leave, methods=["POST"]),
        ]

    async def show(self, request: Request) -> Response:
        return self._shown()

    async def enter(self, request: Request) -> Response:
        text = (await _form(request)).get("token", "").strip()
        try:
            token = await self._authenticator.identify(text, address_of(request))
            if not allows(token.scopes, TokenScope.READ):
                raise NotAllowed("this token does not have the scope read", "use a token with the scope read")
        except (Unauthenticated, NotAllowed, RateLimited) as error:
            return self._shown(error)
        entered = RedirectResponse("/", 303, headers=FRESH)
        entered.set_cookie(cookie_name(request), text, httponly=True, samesite="strict", secure=is_secure(request))
        return entered

    async def leave(self, request: Request) -> Response:
        left = RedirectResponse("/login", 303, headers=FRESH)
        left.delete_cookie(cookie_name(request), httponly=True, samesite="strict", secure=is_secure(request))
        return left

    def _shown(self, error: ShoalError | None = None) -> Response:
        problem = "" if error is None else _words(error)
        status = 200 if error is None else error.response.http_status
        wait = error.facts.get("retry_after_seconds") if error is not None else None
        headers = FRESH | ({} if wait is None else {"Retry-After": str(wait)})
        return HTMLResponse(self._page.render(problem=problem, version=__version__), status, headers)


def _words(error: ShoalError) -> str:
    if isinstance(error, Unauthenticated):
        return "That is not a valid token."
    return error.message[0].upper() + error.message[1:]


async def _form(request: Request) -> dict[str, str]:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LONGEST_FORM:
            raise TooLarge("the form", f"{LONGEST_FORM} bytes", "send only the token")
    values = parse_qs(body.decode("utf-8", "replace"))
    return {name: value[0] for name, value in values.items()}
