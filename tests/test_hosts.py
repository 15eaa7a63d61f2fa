"""Parsing of `PUNA_HOST` and `OLLAMA_HOST`."""

from __future__ import annotations

import logging

import pytest

from puna.hosts import Host, host_from_env, parse_host


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("", "http://127.0.0.1:11434"),
        ("1.2.3.4", "http://1.2.3.4:11434"),
        ("example.com", "http://example.com:11434"),
        ("example.com:8080", "http://example.com:8080"),
        (' " 1.2.3.4:5 " ', "http://1.2.3.4:5"),
        ("::1", "http://[::1]:11434"),
        ("[::1]", "http://[::1]:11434"),
        ("[::1]:1337", "http://[::1]:1337"),
        ("http://1.2.3.4", "http://1.2.3.4:80"),
        ("https://1.2.3.4", "https://1.2.3.4:443"),
        ("HTTPS://1.2.3.4:8443", "https://1.2.3.4:8443"),
        ("https://example.com/ollama", "https://example.com:443/ollama"),
        ("https://example.com/ollama/", "https://example.com:443/ollama"),
        ("example.com:99/a/b", "http://example.com:99/a/b"),
        ("ollama.com", "https://ollama.com:443"),
    ],
)
def test_host_is_parsed_as_ollama_parses_it(text: str, url: str) -> None:
    assert parse_host(text).client_url == url


@pytest.mark.parametrize(
    ("text", "port"),
    [("1.2.3.4:66000", 11434), (":-1", 11434), ("h:x", 11434), ("https://h:99999", 443), ("http://h:", 80)],
)
def test_bad_port_becomes_the_default_of_the_scheme_with_a_warning(
    text: str, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert parse_host(text).port == port
    assert f"{text}: the port must be a number from 0 to 65535" in caplog.text


@pytest.mark.parametrize(
    ("text", "bound", "url"),
    [
        (":1234", "0.0.0.0", "http://127.0.0.1:1234"),
        ("0.0.0.0", "0.0.0.0", "http://127.0.0.1:11434"),
        ("0.0.0.0:80", "0.0.0.0", "http://127.0.0.1:80"),
        ("[::]:80", "::", "http://[::1]:80"),
        ("10.0.0.5", "10.0.0.5", "http://10.0.0.5:11434"),
    ],
)
def test_client_reaches_a_server_on_all_interfaces_through_loopback(text: str, bound: str, url: str) -> None:
    host = parse_host(text)
    assert (host.bind_address, host.client_url) == (bound, url)


def test_port_zero_is_kept_so_that_the_server_can_pick_one() -> None:
    assert parse_host(":0").port == 0


@pytest.mark.parametrize(
    ("text", "loopback", "local"),
    [
        ("", True, True),
        ("localhost", True, True),
        ("127.0.0.2", True, True),
        ("::1", True, True),
        ("0.0.0.0", False, True),
        ("10.0.0.5", False, False),
        ("https://localhost", True, False),
        ("http://localhost/prefix", True, False),
    ],
)
def test_hosts_on_this_machine_are_recognised(text: str, loopback: bool, local: bool) -> None:
    host = parse_host(text)
    assert (host.is_loopback, host.is_local) == (loopback, local)


def test_punas_variable_takes_precedence_over_ollamas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PUNA_HOST", raising=False)
    monkeypatch.setenv("OLLAMA_HOST", "a:1")
    assert host_from_env() == Host(address="a", port=1)
    monkeypatch.setenv("PUNA_HOST", "b:2")
    assert host_from_env() == Host(address="b", port=2)


def test_ipv6_host_is_printed_in_brackets() -> None:
    assert parse_host("[fe80::1]:9").netloc == "[fe80::1]:9"
    assert parse_host("a:9").netloc == "a:9"
