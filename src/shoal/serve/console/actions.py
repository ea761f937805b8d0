"""Carrying out an action of a form: its outcome is a notice on the page that the form came from."""

from collections.abc import Awaitable, Callable

from starlette.responses import Response

from shoal.base.errors import ShoalError
from shoal.serve.console.shell import Notice, Shell, sentence


async def carry_out(shell: Shell, back: str, verb: Callable[[], Awaitable[object]], done: str = "") -> Response:
    """Call a verb and return to a page, which says what happened: `done`, or what the verb returned. An error that the
    reader can do something about is a notice, too."""
    try:
        said = await verb()
    except ShoalError as error:
        if error.response.http_status >= 500:
            raise
        return shell.redirect(back, Notice(sentence(error.message), is_problem=True))
    return shell.redirect(back, Notice(done or str(said)))
