"""Keys, the file of their hashes, and their permissions."""

from __future__ import annotations

import logging
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from starlette.datastructures import Headers

from puna.errors import KeyFileError, RateLimitError
from puna.server.keys import (
    Key,
    Keyring,
    KeyUsage,
    change_keys,
    digest,
    needed_scope,
    new_key,
    presented,
    read_keys,
)


def add(path: Path, name: str, **settings: object) -> str:
    text, key = new_key(name, **settings)  # type: ignore[arg-type]
    change_keys(path, lambda keys: [*keys, key])
    return text


def test_key_file_contains_no_keys_and_is_private_to_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "keys.json"
    texts = [add(path, name) for name in ("a", "b")]
    assert len(set(texts)) == 2
    assert all(len(text) >= 48 and text not in path.read_text() for text in texts)
    assert [key.sha256 for key in read_keys(path)] == [digest(text) for text in texts]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_keys_created_concurrently_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: add(path, f"k{number}"), range(40)))
    assert {key.name for key in read_keys(path)} == {f"k{number}" for number in range(40)}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        '{"keys": [{"name": "a"}]}',
        '{"keys": [{"name": "a", "sha256": "%s", "scope": ["read"]}]}' % ("0" * 64),
        '{"keys": [{"name": "a", "sha256": "%s", "scopes": ["root"]}]}' % ("0" * 64),
        '{"keys": [{"name": "a", "sha256": "12"}]}',
        '{"keys": [{"name": "a b", "sha256": "%s"}]}' % ("0" * 64),
        '{"keys": [{"name": "a", "sha256": "%s", "rate": -1}]}' % ("0" * 64),
    ],
)
def test_damaged_key_file_is_an_error_and_grants_nothing(tmp_path: Path, content: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(content)
    with pytest.raises(KeyFileError, match=r"keys\.json: cannot read the keys"):
        Keyring(file=path)


def test_keyring_finds_its_keys_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    text = add(path, "a")
    given = Key("given", digest("a key from the environment"))
    ring = Keyring([given], path)
    assert ring.required
    assert ring.find("a key from the environment") == given
    found = ring.find(text)
    assert found is not None
    assert found.name == "a"
    for wrong in ("", text[:-1], text + "x", text.swapcase(), digest(text)):
        assert ring.find(wrong) is None


def test_keys_can_change_while_the_server_runs_but_it_stays_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.json"
    ring = Keyring(file=path)
    assert not ring.required
    first = add(path, "first")
    assert ring.required
    assert ring.find(first)
    second = add(path, "second")
    change_keys(path, lambda keys: [key for key in keys if key.name != "first"])
    assert ring.required
    assert (ring.find(first), bool(ring.find(second))) == (None, True)
    path.write_text("damaged")
    with caplog.at_level(logging.ERROR):
        assert ring.required
        assert ring.required
    assert len(caplog.records) == 1
    assert ring.find(second)
    path.unlink()
    assert ring.required
    assert ring.find(second) is None


def test_configured_key_file_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUNA_API_KEYS_FILE", str(tmp_path / "none.json"))
    with pytest.raises(KeyFileError, match=r"none\.json: there is no such key file.*puna key new"):
        Keyring.from_env()


def test_keys_from_the_environment_have_all_scopes_and_short_ones_warn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PUNA_HOME", str(tmp_path))
    monkeypatch.setenv("PUNA_API_KEYS", "a-long-and-random-key-of-mine, secret")
    with caplog.at_level(logging.WARNING):
        ring = Keyring.from_env()
    key = ring.find("a-long-and-random-key-of-mine")
    assert key is not None
    assert key.scopes == ("read", "generate", "manage")
    assert "fewer than 16 characters" in caplog.text
    assert "secret" not in caplog.text
    assert ring.find("") is None


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({"Authorization": "Bearer abc"}, "abc"),
        ({"authorization": "bearer   abc "}, "abc"),
        ({"x-api-key": "abc"}, "abc"),
        ({"Authorization": "Bearer abc", "x-api-key": "other"}, "abc"),
        ({"Authorization": "Basic abc"}, ""),
        ({"Authorization": "Bearer"}, ""),
        ({}, ""),
    ],
)
def test_key_is_read_from_either_header(headers: dict[str, str], key: str) -> None:
    assert presented(Headers(headers)) == key


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", "/", None),
        ("HEAD", "/", None),
        ("OPTIONS", "/api/delete", None),
        ("GET", "/api/tags", "read"),
        ("GET", "/api/tags/", "read"),
        ("POST", "/api/show", "read"),
        ("GET", "/api/version", "read"),
        ("GET", "/api/ps", "read"),
        ("GET", "/metrics", "read"),
        ("GET", "/v1/models", "read"),
        ("GET", "/v1/models/demo", "read"),
        ("HEAD", "/v1/models/demo", "read"),
        ("DELETE", "/v1/models/demo", "manage"),
        ("POST", "/v1/models/demo", "manage"),
        ("PROPFIND", "/v1/models/demo", "manage"),
        ("POST", "/api/generate", "generate"),
        ("POST", "/api/chat", "generate"),
        ("POST", "/api/embed", "generate"),
        ("POST", "/api/embeddings", "generate"),
        ("POST", "/api/cancel", "generate"),
        ("POST", "/api/puna/finish_thinking", "generate"),
        ("POST", "/v1/chat/completions", "generate"),
        ("POST", "/v1/messages", "generate"),
        ("POST", "/", "manage"),
        ("POST", "/api/create", "manage"),
        ("DELETE", "/api/delete", "manage"),
        ("POST", "/api/copy", "manage"),
        ("POST", "/api/pull", "manage"),
        ("POST", "/api/push", "manage"),
        ("POST", "/api/blobs/sha256:0", "manage"),
        ("HEAD", "/api/blobs/sha256:0", "manage"),
        ("GET", "/api/debug/cache", "manage"),
        ("GET", "/whatever/comes/next", "manage"),
        ("GET", "//api/tags", "manage"),
        ("GET", "/health", None),
        ("GET", "/v1/health", None),
        ("POST", "/health", "manage"),
        ("GET", "/props", "read"),
        ("GET", "/slots", "read"),
        ("GET", "/lora-adapters", "read"),
        ("POST", "/lora-adapters", "manage"),
        ("POST", "/completion", "generate"),
        ("POST", "/infill", "generate"),
        ("POST", "/tokenize", "generate"),
        ("POST", "/score", "generate"),
    ],
)
def test_routes_need_the_highest_scope_unless_listed(method: str, path: str, scope: str | None) -> None:
    assert needed_scope(method, path) == scope


def limited_key(**limits: int) -> Key:
    return Key("a", digest("a"), **limits)  # type: ignore[arg-type]


def test_rate_allows_a_minutes_worth_at_once_and_then_one_at_a_time() -> None:
    now_s = 1000.0
    usage = KeyUsage(clock=lambda: now_s)

    def ask() -> int:
        try:
            with usage.request(limited_key(rate=6)):
                return 0
        except RateLimitError as error:
            return error.retry_after_s

    assert [ask() for _ in range(8)] == [0, 0, 0, 0, 0, 0, 10, 10]
    now_s += 9.5
    assert ask() == 1
    now_s += 0.5
    assert [ask(), ask()] == [0, 10]
    now_s += 1e6
    assert [ask() for _ in range(7)] == [0, 0, 0, 0, 0, 0, 10]


def test_requests_in_progress_are_counted_until_they_end_or_fail() -> None:
    usage = KeyUsage()
    key = limited_key(concurrency=2)

    def fails() -> None:
        with usage.request(key):
            raise ValueError

    for _ in range(5):
        with pytest.raises(ValueError):
            fails()
    with usage.request(key), usage.request(key):
        with pytest.raises(RateLimitError, match="2 requests in progress") as refused, usage.request(key):
            pass
        assert refused.value.retry_after_s == 1
        with usage.request(Key("b", digest("b"), concurrency=1)):
            pass
    with usage.request(key):
        pass
