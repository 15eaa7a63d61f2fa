"""The token and the certificates of a cluster."""

from __future__ import annotations

import asyncio
import ssl
import stat
from pathlib import Path

import pytest

from puna.cluster.credentials import check_privacy, init, protection
from puna.errors import PunaError
from puna.runner.tls import tls_contexts


def test_what_is_made_only_its_owner_can_read(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    files = init(folder, ["192.0.2.1", "box.example"])
    assert {path.name for path in files} == {"token", "ca.pem", "ca-key.pem", "cert.pem", "key.pem"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_nodes_are_added_to_the_same_cluster(tmp_path: Path) -> None:
    init(tmp_path, ["192.0.2.1"])
    kept = {name: (tmp_path / name).read_bytes() for name in ("token", "ca.pem", "ca-key.pem")}
    assert {path.name for path in init(tmp_path, ["192.0.2.1", "192.0.2.2"])} == {"cert.pem", "key.pem"}
    assert {name: (tmp_path / name).read_bytes() for name in kept} == kept


def test_nothing_listens_for_others_without_token_and_tls(tmp_path: Path) -> None:
    with pytest.raises(PunaError, match="puna cluster init"):
        protection("192.0.2.1", tmp_path, {})
    with pytest.raises(PunaError, match="puna cluster init"):
        protection("192.0.2.1", tmp_path, {"RAY_AUTH_MODE": "token"})
    with pytest.raises(PunaError, match="puna cluster init"):
        protection("192.0.2.1", tmp_path, {"RAY_USE_TLS": "1"})
    init(tmp_path, ["192.0.2.1"])
    found = protection("192.0.2.1", tmp_path, {})
    assert (found["RAY_AUTH_MODE"], found["RAY_USE_TLS"]) == ("token", "1")


def test_loopback_has_a_token_too(tmp_path: Path) -> None:
    found = protection("127.0.0.1", tmp_path / "new", {})
    assert found["RAY_AUTH_MODE"] == "token"
    token = Path(found["RAY_AUTH_TOKEN_PATH"])
    assert len(token.read_text()) == 64
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert protection("127.0.0.1", tmp_path / "new", {}) == found
    assert tls_contexts(found) is None


def test_nodes_beyond_this_machine_are_only_used_with_encrypted_connections() -> None:
    check_privacy("127.0.0.1", encrypted=False)
    check_privacy("192.0.2.1", encrypted=True)
    with pytest.raises(PunaError, match=r"node at 192\.0\.2\.1 would not be encrypted: .*RAY_USE_TLS"):
        check_privacy("192.0.2.1", encrypted=False)


def test_what_the_environment_says_is_used(tmp_path: Path) -> None:
    given = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "abc", "PATH": "/bin"}
    found = protection("127.0.0.1", tmp_path / "none", given)
    assert found == {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "abc"}
    assert not (tmp_path / "none").exists()


def test_connections_need_a_certificate_of_the_same_cluster(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    for folder in (mine, theirs):
        init(folder, ["127.0.0.1"])
    contexts = {folder: tls_contexts(protection("127.0.0.1", folder, {})) for folder in (mine, theirs)}

    async def reply(client: ssl.SSLContext | None) -> bytes:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write((await reader.read(64))[:4])
            writer.close()

        own = contexts[mine]
        assert own is not None
        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=own[0])
        async with server:
            port = server.sockets[0].getsockname()[1]
            try:
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port, ssl=client, server_hostname="" if client else None
                )
                writer.write(b"ping" if client else b"GET / HTTP/1.1\r\n\r\n")
                return await reader.read()
            except (ssl.SSLError, ConnectionError):
                return b""

    def context(folder: Path) -> ssl.SSLContext:
        found = contexts[folder]
        assert found is not None
        return found[1]

    assert asyncio.run(reply(context(mine))) == b"ping"
    assert asyncio.run(reply(context(theirs))) == b""
    anonymous = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anonymous.check_hostname = False
    anonymous.load_verify_locations(mine / "ca.pem")
    assert asyncio.run(reply(anonymous)) == b""
    assert asyncio.run(reply(None)) == b""
