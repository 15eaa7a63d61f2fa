"""Refused pulls: hostile manifests, registries that refuse, and attempts to reach private networks."""

from __future__ import annotations

import json
import shutil
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from puna.errors import InvalidNameError, RegistryError, StoreError
from puna.registry.pull import pull
from puna.registry.remote import identity
from puna.store import Store
from tests.registry.pulling import holds, is_empty, pulled
from tests.registry.registries import Published, Registry, reply, serving


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value: value | {"layers": value["layers"] * 501}, "at most 1000"),
        (lambda value: value | {"config": value["config"] | {"size": -1}}, "has -1 bytes"),
        (lambda value: value | {"config": value["config"] | {"size": 1 << 60}}, "bytes"),
        (lambda value: value | {"config": value["config"] | {"digest": "../../x"}}, "invalid digest"),
        (lambda value: [value], "not a model manifest"),
        (lambda value: {"padding": "x" * (5 << 20)}, "more than 4 MB"),
        (lambda value: value | {"config": value["config"] | {"size": 1 << 49}}, "free some space"),
    ],
)
def test_hostile_manifest_is_refused(store: Store, published: Published, change: Any, message: str) -> None:
    published.manifest = json.dumps(change(json.loads(published.manifest))).encode()
    with serving(Registry(published)) as registry, pytest.raises((RegistryError, StoreError), match=message):
        pulled(store, registry.name)
    assert not store.blobs.folder.exists() or is_empty(store)


def test_missing_model_is_reported(store: Store, published: Published) -> None:
    with serving(Registry(published)) as registry:
        with pytest.raises(RegistryError, match="pull model manifest: file does not exist"):
            pulled(store, f"http://{registry.address}/team/other")
        with pytest.raises(InvalidNameError):
            pulled(store, f"http://{registry.address}/team/mo del")


def test_temporary_errors_are_retried_and_permanent_ones_reported(store: Store, published: Published) -> None:
    statuses = [503, 429]

    def intercept(handler: BaseHTTPRequestHandler) -> bool:
        if not statuses or "/blobs/" not in handler.path:
            return False
        reply(handler, statuses.pop(), b"later")
        return True

    with serving(Registry(published, intercept=intercept)) as registry:
        pulled(store, registry.name)
        assert holds(store, published)
        shutil.rmtree(store.root)
        statuses[:] = [500] * 9
        with pytest.raises(RegistryError, match="max retries exceeded: 500: later"):
            pulled(store, registry.name)
        statuses[:] = [403]
        with pytest.raises(RegistryError, match="unauthorized: access denied"):
            pulled(store, registry.name)


def test_registry_that_requires_a_token_is_given_one(store: Store, published: Published) -> None:
    def intercept(handler: BaseHTTPRequestHandler) -> bool:
        if handler.path.startswith("/token?"):
            assert handler.path == "/token?service=models&scope=repository%3Ateam%2Fmodel%3Apull"
            reply(handler, 200, b'{"token": "secret"}')
            return True
        if handler.headers.get("authorization") == "Bearer secret":
            return False
        challenge = f'Bearer realm="http://{registry.address}/token",service="models",scope="repository:team/model:pull"'
        reply(handler, 401, b"", {"www-authenticate": challenge})
        return True

    registry = Registry(published, intercept=intercept)
    with serving(registry):
        pulled(store, registry.name)
    assert holds(store, published)


def test_identity_is_sent_to_the_registry_alone(
    store: Store, published: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert identity(create=True) is not None
    received: list[tuple[str, str | None]] = []

    def grant(handler: BaseHTTPRequestHandler) -> bool:
        received.append((handler.path, handler.headers.get("authorization")))
        reply(handler, 200, b'{"token": "secret"}')
        return True

    def intercept(handler: BaseHTTPRequestHandler) -> bool:
        if handler.headers.get("authorization") == "Bearer secret":
            return False
        reply(handler, 401, b"", {"www-authenticate": f'Bearer realm="http://{other.address}/token"'})
        return True

    with (
        serving(Registry(published, intercept=grant)) as other,
        serving(Registry(published, intercept=intercept)) as requested,
    ):
        pulled(store, requested.name)
    assert holds(store, published)
    assert received == [("/token", None)]


def test_token_is_sent_to_no_other_host(store: Store, published: Published) -> None:
    received: list[str | None] = []

    def elsewhere(handler: BaseHTTPRequestHandler) -> bool:
        received.append(handler.headers.get("authorization"))
        return False

    with serving(Registry(published, intercept=elsewhere)) as other:

        def intercept(handler: BaseHTTPRequestHandler) -> bool:
            if handler.path.startswith("/token"):
                reply(handler, 200, b'{"access_token": "secret"}')
            elif handler.headers.get("authorization") != "Bearer secret":
                challenge = f'Bearer realm="http://{registry.address}/token"'
                reply(handler, 401, b"", {"www-authenticate": challenge})
            elif "/blobs/" in handler.path:
                reply(handler, 307, b"", {"location": f"http://{other.address}{handler.path}"})
            else:
                return False
            return True

        with serving(Registry(published, intercept=intercept)) as registry:
            pulled(store, registry.name)
    assert holds(store, published)
    assert received == [None] * 3


def test_plain_http_must_be_requested_explicitly(store: Store, published: Published) -> None:
    with serving(Registry(published)) as registry:
        with pytest.raises(RegistryError, match="insecure protocol http"):
            pull(store, registry.name, lambda _: None)
        with pytest.raises(RegistryError, match=r"SSL.*--insecure"):
            pull(store, f"{registry.address}/team/model", lambda _: None)
        # Without a scheme, TLS is tried first.
        pulled(store, f"{registry.address}/team/model")
    assert holds(store, published)


def test_private_addresses_must_be_allowed(
    store: Store, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(Registry(published)) as registry:
        monkeypatch.setenv("PUNA_PRIVATE_REGISTRIES", "registry.example")
        with pytest.raises(
            RegistryError,
            match=r"PUNA_PRIVATE_REGISTRIES=127\.0\.0\.1 to allow it .*'puna serve --stop'",
        ):
            pulled(store, registry.name)
        assert registry.requested == []
        monkeypatch.setenv("PUNA_PRIVATE_REGISTRIES", registry.address)
        pulled(store, registry.name)


def test_redirect_to_a_private_address_is_refused(
    store: Store, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(Registry(published)) as secret:

        def intercept(handler: BaseHTTPRequestHandler) -> bool:
            if "/blobs/" in handler.path:
                reply(handler, 307, b"", {"location": f"http://{secret.address}{handler.path}"})
                return True
            return False

        with serving(Registry(published, intercept=intercept)) as registry:
            monkeypatch.setenv("PUNA_PRIVATE_REGISTRIES", registry.address)
            with pytest.raises(RegistryError, match="not a public address"):
                pulled(store, registry.name)
        assert secret.requested == []
