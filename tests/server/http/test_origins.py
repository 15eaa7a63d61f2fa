from __future__ import annotations

import pytest

from puna.errors import PunaError
from puna.server.http.origins import parse_origins


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost",
        "http://localhost:3000",
        "https://127.0.0.1:8443",
        "http://0.0.0.0:1",
        "app://obsidian.md",
        "file://",
        "tauri://localhost",
        "vscode-webview://abc",
        "vscode-file://vscode-app",
    ],
)
def test_local_pages_and_apps_are_always_allowed(origin: str) -> None:
    assert parse_origins("").allow(origin)


@pytest.mark.parametrize(
    "origin",
    [
        "http://example.com",
        "https://localhost.evil.com",
        "http://127.0.0.2",
        "ftp://localhost",
        "null",
        "http://localhostx",
        "http://127.0.0.1:1.evil.com",
        "http://127.0.0.1:1@evil.com",
        "http://localhost:",
        "http://localhost:123456",
        "http://localhost:1/",
    ],
)
def test_other_pages_are_not_allowed(origin: str) -> None:
    assert not parse_origins("").allow(origin)


def test_configured_origins_are_added_to_the_local_ones() -> None:
    rules = parse_origins("https://example.com,http://10.0.0.*,chrome-extension://abc")
    assert rules.allow("https://example.com")
    assert not rules.allow("https://example.com:8080")
    assert parse_origins("https://example.com:*").allow("https://example.com:8080")
    assert not parse_origins("https://example.com:*").allow("https://example.com:80.evil.com")
    assert rules.allow("http://10.0.0.7:3000")
    assert rules.allow("chrome-extension://abc")
    assert rules.allow("http://localhost:1")


def test_star_allows_every_page() -> None:
    rules = parse_origins("*")
    assert rules.any
    assert rules.allow("https://anything.example")


@pytest.mark.parametrize("entry", ["example.com", "http://*.a.*", "ftp://x"])
def test_invalid_origin_is_an_error_naming_the_setting(entry: str) -> None:
    with pytest.raises(PunaError, match="PUNA_ORIGINS"):
        parse_origins(f"https://good.example,{entry}")
