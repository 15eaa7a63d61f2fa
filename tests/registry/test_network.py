"""The way out: which addresses may be connected to, and that the connection goes where was looked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest

from puna.errors import RegistryError
from puna.hosts import is_public
from puna.registry.network import GuardedTransport


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "64:ff9b::808:808"])
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::",
    ],
)  # fmt: skip
def test_addresses_of_this_machine_and_its_networks(address: str) -> None:
    assert not is_public(address)


def test_a_name_with_a_private_address_is_refused() -> None:
    transport = GuardedTransport(insecure=False, resolve=lambda host, port: ["169.254.169.254", "10.0.0.1"])
    with (
        httpx.Client(transport=transport) as http,
        pytest.raises(RegistryError, match="not a public address"),
    ):
        http.get("https://rebinding.example/")


@pytest.mark.parametrize("url", ["http://registry.example/", "ftp://registry.example/"])
def test_without_tls_nothing_is_asked(url: str) -> None:
    def resolve(host: str, port: int) -> list[str]:
        raise AssertionError("it must not come to this")

    with (
        httpx.Client(transport=GuardedTransport(insecure=False, resolve=resolve)) as http,
        pytest.raises((RegistryError, httpx.UnsupportedProtocol)),
    ):
        http.get(url)


def test_a_name_that_does_not_exist() -> None:
    with (
        httpx.Client(transport=GuardedTransport(insecure=False)) as http,
        pytest.raises(httpx.ConnectError, match="cannot find nowhere"),
    ):
        http.get("https://nowhere.invalid/")


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What a proxy that the environment names was asked for; `direct.example` is not for it."""
    asked: list[str] = []

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

    server = HTTPServer(("127.0.0.1", 0), Proxy)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("no_proxy", "direct.example")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield asked
    server.shutdown()
    server.server_close()


def test_a_proxy_of_the_environment_finds_names_and_decides(proxy: list[str]) -> None:
    looked: list[str] = []

    def resolve(host: str, port: int) -> list[str]:
        looked.append(host)
        return ["10.0.0.1"]

    with httpx.Client(transport=GuardedTransport(insecure=True, resolve=resolve)) as http:
        assert http.get("http://registry.example/v2/").status_code == 200
        assert (proxy, looked) == (["http://registry.example/v2/"], [])
        with pytest.raises(RegistryError, match="not a public address"):
            http.get("http://direct.example/")
    assert (len(proxy), looked) == (1, ["direct.example"])
