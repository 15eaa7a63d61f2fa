"""Outgoing connections: which addresses are allowed, and that the address checked is the one connected to."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest

from puna.errors import RegistryError
from puna.hosts import is_public
from puna.registry.network import GuardedTransport
from tests.answering import answering


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "64:ff9b::808:808"])
def test_public_addresses_are_recognised(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::",
    ],
)  # fmt: skip
def test_addresses_of_this_machine_and_its_networks_are_not_public(address: str) -> None:
    assert not is_public(address)


def test_name_that_resolves_to_a_private_address_is_refused() -> None:
    transport = GuardedTransport(insecure=False, resolve=lambda host, port: ["169.254.169.254", "10.0.0.1"])
    with (
        httpx.Client(transport=transport) as http,
        pytest.raises(RegistryError, match="not a public address"),
    ):
        http.get("https://rebinding.example/")


@pytest.mark.parametrize("url", ["http://registry.example/", "ftp://registry.example/"])
def test_request_without_tls_is_refused_before_resolving_the_name(url: str) -> None:
    def resolve(host: str, port: int) -> list[str]:
        raise AssertionError("the name must not be resolved")

    with (
        httpx.Client(transport=GuardedTransport(insecure=False, resolve=resolve)) as http,
        pytest.raises((RegistryError, httpx.UnsupportedProtocol)),
    ):
        http.get(url)


def test_unknown_host_name_is_reported() -> None:
    with (
        httpx.Client(transport=GuardedTransport(insecure=False)) as http,
        pytest.raises(httpx.ConnectError, match="cannot find nowhere"),
    ):
        http.get("https://nowhere.invalid/")


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return the requests to a proxy set in the environment; `direct.example` bypasses it."""
    requested: list[str] = []

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested.append(self.path)
            self.send_response(200)
            self.end_headers()

    with answering(HTTPServer(("127.0.0.1", 0), Proxy)) as server:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("no_proxy", "direct.example")
        yield requested


def test_proxy_from_the_environment_resolves_names_and_decides(proxy: list[str]) -> None:
    resolved: list[str] = []

    def resolve(host: str, port: int) -> list[str]:
        resolved.append(host)
        return ["10.0.0.1"]

    with httpx.Client(transport=GuardedTransport(insecure=True, resolve=resolve)) as http:
        assert http.get("http://registry.example/v2/").status_code == 200
        assert (proxy, resolved) == (["http://registry.example/v2/"], [])
        with pytest.raises(RegistryError, match="not a public address"):
            http.get("http://direct.example/")
    assert (len(proxy), resolved) == (1, ["direct.example"])
