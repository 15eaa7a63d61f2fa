from __future__ import annotations

import socket

import psutil
import pytest
from starlette.responses import Response
from starlette.testclient import TestClient

from puna.hosts import Host
from puna.server.http.origins import HostCheckMiddleware, host_name, is_local_address, is_local_name


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost:11434", "localhost"),
        ("LOCALHOST", "localhost"),
        ("127.0.0.1:11434", "127.0.0.1"),
        ("[::1]:11434", "::1"),
        ("[::1]", "::1"),
        ("::1", "::1"),
        ("", ""),
        (":11434", ""),
        ("a.b:", "a.b"),
        ("[::1].evil.com", None),
        ("[::1]:1.evil.com", None),
        ("[::1", None),
        ("::1]", None),
        ("[localhost]", None),
        ("[127.0.0.1]", None),
        ("localhost:1:2", None),
        ("localhost:1.evil.com", None),
        ("evil.com/.local", None),
        ("me@localhost", None),
        ("a b.local", None),
    ],
)
def test_host_name_ignores_the_port_and_refuses_malformed_headers(header: str, name: str | None) -> None:
    assert host_name(header) == name


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.8.8.8", "::1", "0.0.0.0", "::", "10.1.2.3", "172.16.0.1", "192.168.1.1", "fd00::1"],
)
def test_loopback_private_and_unspecified_addresses_are_local(host: str) -> None:
    assert is_local_address(host)


@pytest.mark.parametrize(
    "host", ["8.8.8.8", "172.32.0.1", "2001:4860:4860::8888", "203.0.113.5", "localhost", ""]
)
def test_other_addresses_and_names_are_not_local_addresses(host: str) -> None:
    assert not is_local_address(host)


def test_addresses_of_this_machine_are_local() -> None:
    entries = [entry for found in psutil.net_if_addrs().values() for entry in found]
    addresses = [entry.address for entry in entries if entry.family == socket.AF_INET]
    assert addresses
    assert all(is_local_address(address) for address in addresses)


@pytest.mark.parametrize(
    "name", ["", "localhost", "a.localhost", "box.local", "api.internal", socket.gethostname().lower()]
)
def test_names_of_this_machine_and_private_networks_are_local(name: str) -> None:
    assert is_local_name(name)


@pytest.mark.parametrize(
    "name", ["example.com", "localhost.example.com", "local", "evil-localhost", "8.8.8.8"]
)
def test_other_names_are_not_local(name: str) -> None:
    assert not is_local_name(name)


def status(
    bound: str, host: str, *, allowed: tuple[str, ...] = (), keys: bool = False, **headers: str
) -> int:
    app = HostCheckMiddleware(Response(), Host(address=bound), allowed, lambda: keys)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return TestClient(app).get("/", headers={"host": host, "user-agent": "curl/8", **sent}).status_code


@pytest.mark.parametrize("host", ["llm.example.com", "evil.example:11434"])
def test_programs_may_use_any_name_of_a_public_server_but_web_pages_may_not(host: str) -> None:
    assert status("0.0.0.0", host) == 200
    assert status("0.0.0.0", host, origin=f"http://{host}") == 403
    assert status("0.0.0.0", host, referer=f"http://{host}/") == 403
    assert status("0.0.0.0", host, sec_fetch_site="same-origin") == 403
    assert status("0.0.0.0", host, user_agent="Mozilla/5.0 (X11)") == 403
    assert status("127.0.0.1", host) == 403


@pytest.mark.parametrize(
    "host",
    ["192.168.1.5:11434", "203.0.113.5", "[2001:db8::1]:80", "ollama:11434", "nas.lan", "box.local", ""],
)
def test_web_pages_may_use_addresses_and_private_names_of_a_public_server(host: str) -> None:
    assert status("0.0.0.0", host, origin="http://other") == 200


def test_names_can_be_allowed_and_keys_allow_all_names() -> None:
    page = {"origin": "https://llm.example.com"}
    for bound in ("0.0.0.0", "127.0.0.1"):
        assert status(bound, "llm.example.com", allowed=("llm.example.com",), **page) == 200
        assert status(bound, "evil.example", allowed=("llm.example.com",), **page) == 403
        assert status(bound, "llm.example.com", allowed=("*",), **page) == 200
        assert status(bound, "llm.example.com", keys=True, **page) == 200
