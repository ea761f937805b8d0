"""The login page of the console. It asks for a token and stores the token in a cookie that is sent only to this
server."""

from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from shoal.access.token import TokenScope, allows
from shoal.base.errors import NotAllowed, RateLimited, ShoalError, TooLarge, Unauthenticated
from shoal.base.text import message
from shoal.serve.authentication import TokenAuthenticator, address_of, cookie_name, is_secure, sign_in
from shoal.serve.console.shell import Shell, local_path, sentence

LONGEST_FORM = 4096
NOT_VALID = message("That is not a valid token.")


class Login:
    """`/login` and `/logout`."""

    def __init__(self, authenticator: TokenAuthenticator, shell: Shell) -> None:
        self._authenticator = authenticator
        self._shell = shell

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/login", self.show, methods=["GET"]),
            Route("/login", self.enter, methods=["POST"]),
            Route("/logout", self.leave, methods=["POST"]),
        ]

    async def show(self, request: Request) -> Response:
        return await self._shown(request, request.query_params.get("next", "/"))

    async def enter(self, request: Request) -> Response:
        form = await _form(request)
        text, wanted = form.get("token", "").strip(), local_path(form.get("next", "/"))
        try:
            token = await self._authenticator.identify(text, address_of(request))
            if not allows(token.scopes, TokenScope.READ):
                raise NotAllowed("this token does not have the scope read", "use a token with the scope read")
        except (Unauthenticated, NotAllowed, RateLimited) as error:
            return await self._shown(request, wanted, error)
        entered = self._shell.redirect(wanted)
        sign_in(request, entered, text)
        return entered

    async def leave(self, request: Request) -> Response:
        left = self._shell.redirect("/login")
        left.delete_cookie(cookie_name(request), httponly=True, samesite="strict", secure=is_secure(request))
        return left

    async def _shown(self, request: Request, wanted: str, error: ShoalError | None = None) -> Response:
        problem = "" if error is None else sentence(error.message)
        if isinstance(error, Unauthenticated):
            problem = self._shell.view(request).language(NOT_VALID)
        status = 200 if error is None else error.response.http_status
        # the first token must have the scope admin
        role = "viewer" if await self._authenticator.any_token_made() else "admin"
        context = {"problem": problem, "next": local_path(wanted), "role": role}
        response = self._shell.page(request, "login.html", context, status)
        wait = error.facts.get("retry_after_seconds") if error is not None else None
        if wait is not None:
            response.headers["Retry-After"] = str(wait)
        return response


async def _form(request: Request) -> dict[str, str]:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LONGEST_FORM:
            raise TooLarge("the form", f"{LONGEST_FORM} bytes", "send only the token")
    values = parse_qs(body.decode("utf-8", "replace"))
    return {name: value[0] for name, value in values.items()}
