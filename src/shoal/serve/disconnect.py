"""Notices that the client of a request has gone."""

from starlette.requests import Request


async def disconnect(request: Request) -> None:
    """Wait until the client has closed the connection. The body of the request must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
