"""What a pull refuses: hostile manifests, registries that refuse, and ways into private networks."""

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
def test_hostile_manifests(store: Store, published: Published, change: Any, message: str) -> None:
    published.manifest = json.dumps(change(json.loads(published.manifest))).encode()
    with serving(Registry(published)) as registry, pytest.raises((RegistryError, StoreError), match=message):
        pulled(store, registry.name)
    assert not store.blobs.folder.exists() or is_empty(store)


def test_a_model_that_is_not_there(store: Store, published: Published) -> None:
    with serving(Registry(published)) as registry:
        with pytest.raises(RegistryError, match="pull model manifest: file does not exist"):
            pulled(store, f"http://{registry.address}/team/other")
        with pytest.raises(InvalidNameError):
            pulled(store, f"http://{registry.address}/team/mo del")


def test_errors_that_pass_and_errors_that_stay(store: Store, published: Published) -> None:
    statuses = [503, 429]

    def told(handler: BaseHTTPRequestHandler) -> bool:
        if not statuses or "/blobs/" not in handler.path:
            return False
        reply(handler, statuses.pop(), b"later")
        return True

    with serving(Registry(published, told=told)) as registry:
        pulled(store, registry.name)
        assert holds(store, published)
        shutil.rmtree(store.root)
        statuses[:] = [500] * 9
        with pytest.raises(RegistryError, match="max retries exceeded: 500: later"):
            pulled(store, registry.name)
        statuses[:] = [403]
        with pytest.raises(RegistryError, match="unauthorized: access denied"):
            pulled(store, registry.name)


def test_a_registry_that_wants_a_token(store: Store, published: Published) -> None:
    def told(handler: BaseHTTPRequestHandler) -> bool:
        if handler.path.startswith("/token?"):
            assert handler.path == "/token?service=models&scope=repository%3Ateam%2Fmodel%3Apull"
            reply(handler, 200, b'{"token": "secret"}')
            return True
        if handler.headers.get("authorization") == "Bearer secret":
            return False
        challenge = f'Bearer realm="http://{registry.address}/token",service="models",scope="repository:team/model:pull"'
        reply(handler, 401, b"", {"www-authenticate": challenge})
        return True

    registry = Registry(published, told=told)
    with serving(registry):
        pulled(store, registry.name)
    assert holds(store, published)


def test_who_we_are_is_told_to_the_registry_alone(
    store: Store, published: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert identity(create=True) is not None
    heard: list[tuple[str, str | None]] = []

    def grants(handler: BaseHTTPRequestHandler) -> bool:
        heard.append((handler.path, handler.headers.get("authorization")))
        reply(handler, 200, b'{"token": "secret"}')
        return True

    def told(handler: BaseHTTPRequestHandler) -> bool:
        if handler.headers.get("authorization") == "Bearer secret":
            return False
        reply(handler, 401, b"", {"www-authenticate": f'Bearer realm="http://{other.address}/token"'})
        return True

    with serving(Registry(published, told=grants)) as other, serving(Registry(published, told=told)) as asked:
        pulled(store, asked.name)
    assert holds(store, published)
    assert heard == [("/token", None)]


def test_a_token_goes_to_no_other_host(store: Store, published: Published) -> None:
    heard: list[str | None] = []

    def elsewhere(handler: BaseHTTPRequestHandler) -> bool:
        heard.append(handler.headers.get("authorization"))
        return False

    with serving(Registry(published, told=elsewhere)) as other:

        def told(handler: BaseHTTPRequestHandler) -> bool:
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

        with serving(Registry(published, told=told)) as registry:
            pulled(store, registry.name)
    assert holds(store, published)
    assert heard == [None] * 3


def test_plain_http_must_be_asked_for(store: Store, published: Published) -> None:
    with serving(Registry(published)) as registry:
        with pytest.raises(RegistryError, match="insecure protocol http"):
            pull(store, registry.name, lambda _: None)
        with pytest.raises(RegistryError, match=r"SSL.*--insecure"):
            pull(store, f"{registry.address}/team/model", lambda _: None)
        # Without a scheme TLS is tried first, as it should be.
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
        assert registry.asked == []
        monkeypatch.setenv("PUNA_PRIVATE_REGISTRIES", registry.address)
        pulled(store, registry.name)


def test_a_redirect_leads_to_no_private_address(
    store: Store, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(Registry(published)) as secret:

        def told(handler: BaseHTTPRequestHandler) -> bool:
            if "/blobs/" in handler.path:
                reply(handler, 307, b"", {"location": f"http://{secret.address}{handler.path}"})
                return True
            return False

        with serving(Registry(published, told=told)) as registry:
            monkeypatch.setenv("PUNA_PRIVATE_REGISTRIES", registry.address)
            with pytest.raises(RegistryError, match="not a public address"):
                pulled(store, registry.name)
        assert secret.asked == []
