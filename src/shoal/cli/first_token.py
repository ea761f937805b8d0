"""The first token of a store, for a controller that is started unattended."""

import os
from pathlib import Path

from shoal.access.caller import local_caller
from shoal.access.token import TokenRequest
from shoal.app import App
from shoal.base.disk import make_private, open_private
from shoal.base.errors import BadConfig
from shoal.cli.output import note


async def write_first_token(app: App, path: Path) -> None:
    """Create an admin token and write it to a file that only its owner may read, unless the store has a token."""
    if await app.access.tokens.any_made():
        return
    try:
        make_private(path.parent)
        # The file comes first: a token that cannot be written would lock everybody out.
        with os.fdopen(open_private(str(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as file:
            made = await app.access.tokens.create(TokenRequest(name="first", role="admin"), local_caller())
            file.write(f"{made.text}\n")
    except OSError as error:
        raise BadConfig(
            "--first-token-file", f"cannot be written ({error.strerror})", "give a path in a writable folder"
        ) from None
    note(f"The first token of this store, with the role admin, is in {path}.")
