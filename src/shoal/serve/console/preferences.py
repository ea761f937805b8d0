"""The preferences of a reader: theme and language, stored in a cookie."""

from starlette.responses import Response

from shoal.access.token import TokenScope
from shoal.serve.console.forms import FORM_TYPE, read_form
from shoal.serve.console.shell import Shell, local_path
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint


class PreferencesApi:
    """`/console/preferences`."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    @endpoint(
        "POST",
        "/console/preferences",
        scope=TokenScope.READ,
        summary="Choose the theme and the language.",
        file=(FORM_TYPE,),
        public=False,
    )
    async def choose(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        form = await read_form(request.http)
        view = self._shell.view(request.http)
        response = self._shell.redirect(local_path(form.get("back", "/")))
        self._shell.remember(response, form.get("theme", view.theme), form.get("language", view.language.code))
        return response
