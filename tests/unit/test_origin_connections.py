"""The limit of concurrent requests per origin, over all pages of a renderer."""

from shoal.web.network import OriginConnections, WaitingRequest

SITE = "http://site.test"


class Requests:
    """Requests of pages, with a record of those that were continued."""

    def __init__(self) -> None:
        self.connections = OriginConnections()
        self.begun: list[str] = []

    def start(self, name: str, page: object = None, limit: int = 2, *, is_noticed: bool = True) -> None:
        def go() -> bool:
            self.begun.append(name)
            return is_noticed

        self.connections.start(SITE, WaitingRequest(page, limit, go))

    @property
    def is_empty(self) -> bool:
        return not self.connections._in_flight and not self.connections._waiting


def test_requests_above_the_limit_wait_in_order() -> None:
    requests = Requests()
    for name in "abcd":
        requests.start(name)
    assert requests.begun == ["a", "b"]
    requests.connections.end(SITE)
    assert requests.begun == ["a", "b", "c"]
    for _ in range(3):
        requests.connections.end(SITE)
    assert requests.begun == ["a", "b", "c", "d"]
    assert requests.is_empty


def test_thousands_of_waiting_requests_end_without_recursion() -> None:
    requests = Requests()
    requests.start("first", limit=1)
    for number in range(5000):
        requests.start(str(number), limit=1, is_noticed=False)
    requests.connections.end(SITE)
    assert len(requests.begun) == 5001
    assert requests.is_empty


def test_what_waits_for_a_closed_page_is_dropped() -> None:
    requests, closed, other = Requests(), object(), object()
    requests.start("closed 1", closed, 1)
    requests.start("closed 2", closed, 1)
    requests.start("other 1", other, 1)
    requests.connections.drop(closed)
    requests.connections.end(SITE)
    assert requests.begun == ["closed 1", "other 1"]
    requests.connections.end(SITE)
    assert requests.is_empty
