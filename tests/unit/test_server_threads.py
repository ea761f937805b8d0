"""The servers of the tests: one that ends leaves nobody connected."""

import socket
from contextlib import suppress
from urllib.parse import urlsplit

from tests.support.delay_proxy import delay_proxy


def test_a_connection_that_comes_while_its_server_closes_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as target:
        url = f"tcp://127.0.0.1:{target.getsockname()[1]}"
        for _ in range(20):
            with delay_proxy(url) as proxy:
                clients = [socket.create_connection(("127.0.0.1", urlsplit(proxy.url).port or 0)) for _ in range(4)]
            for client in clients:
                with client, suppress(ConnectionResetError):
                    client.settimeout(10)
                    assert client.recv(1) == b""
