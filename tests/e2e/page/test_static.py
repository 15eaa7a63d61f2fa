"""The page's files: who gets them, how they are packed and kept, and what keys, TLS and proxies change."""

from __future__ import annotations

import gzip
import re
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import trustme

from puna.server import keys
from tests import commands
from tests.e2e.page.built import SCRIPT, made_up_page, needs_page
from tests.e2e.servers import Server, command, environment, running
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.e2e

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
GREETING = "Ollama is running"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_up_page(tmp_path_factory.mktemp("page") / "dist")


@pytest.fixture(scope="module")
def showing(tmp_path_factory: pytest.TempPathFactory, page: Path) -> Iterator[Server]:
    """A server with the page."""
    with running(tmp_path_factory.mktemp("models"), PUNA_PAGE=str(page)) as server:
        yield server


@pytest.fixture(scope="module")
def shown(showing: Server) -> Iterator[httpx.Client]:
    """A client of the server with the page."""
    with showing.http as http:
        yield http


def raw(http: httpx.Client, path: str, accepted: str) -> tuple[httpx.Response, bytes]:
    """Return a reply with its body as it was sent."""
    with http.stream("GET", path, headers={"Accept-Encoding": accepted}) as reply:
        return reply, b"".join(reply.iter_raw())


@pytest.mark.parametrize("accept", ["", "*/*", "application/json", "text/plain"])
def test_programs_are_greeted_as_by_ollama(shown: httpx.Client, accept: str) -> None:
    reply = shown.get("/", headers={"Accept": accept})
    assert (reply.status_code, reply.text) == (200, GREETING)
    head = shown.head("/", headers={"Accept": accept})
    assert (head.status_code, head.content) == (200, b"")


def test_head_of_the_root_is_the_greetings_for_browsers_too(shown: httpx.Client) -> None:
    head = shown.head("/", headers=BROWSER)
    assert (head.status_code, head.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert head.headers["content-length"] == str(len(GREETING))


def test_browsers_get_the_page_with_a_policy_and_ask_for_it_again_each_time(shown: httpx.Client) -> None:
    reply = shown.get("/", headers=BROWSER)
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert "assets/main-ABC.js" in reply.text
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "no-referrer"
    policy = dict(part.split(" ", 1) for part in reply.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'self'"
    assert policy["object-src"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
    assert not re.search("unsafe|http:|https:|[*]", reply.headers["content-security-policy"])
    again = shown.get("/", headers={**BROWSER, "If-None-Match": reply.headers["etag"]})
    assert again.status_code in (200, 304)


def test_documents_of_models_are_shown_without_an_origin_and_a_network(shown: httpx.Client) -> None:
    reply = shown.get("/artifact.html")
    policy = reply.headers["content-security-policy"].split("; ")
    assert policy[:2] == ["sandbox allow-scripts", "default-src 'none'"]
    assert not any(part.startswith(("connect-src", "form-action")) for part in policy)
    assert "allow-same-origin" not in policy[0]


def test_assets_stay_in_the_browser_and_come_packed(shown: httpx.Client) -> None:
    path = "/assets/main-ABC.js"
    for accepted, encoding in (
        ("br, gzip", "gzip"),
        ("gzip;q=1.0, deflate", "gzip"),
        ("br", None),
        ("identity", None),
        ("", None),
    ):
        reply, sent = raw(shown, path, accepted)
        assert reply.headers.get("content-encoding") == encoding
        assert (gzip.decompress(sent) if encoding else sent) == SCRIPT
        assert int(reply.headers["content-length"]) == len(sent)
        assert reply.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert reply.headers["content-type"] == "text/javascript; charset=utf-8"
        assert reply.headers["vary"] == "accept-encoding"
    reply, _ = raw(shown, "/assets/icon-ABC.svg", "br, gzip")
    assert "content-encoding" not in reply.headers
    assert reply.headers["content-type"] == "image/svg+xml; charset=utf-8"


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../index.html",
        "/assets/..%2findex.html",
        "/assets/%2e%2e/%2e%2e/secret",
        "/assets/....//secret",
        "/assets//etc/passwd",
        "/assets/%2fetc%2fpasswd",
        "/assets/main-ABC.js%00.svg",
        "/assets/..\\secret",
        "/assets/main-ABC.js.gz",
        "/assets/",
        "/assets",
        "/index.html",
        "/secret",
    ],
)
def test_nothing_but_the_pages_own_files_is_sent(showing: Server, page: Path, path: str) -> None:
    (page.parent / "secret").write_text("classified")
    (page / "secret").write_text("classified")
    address = urlsplit(showing.url)
    # Clients would tidy the path.
    with socket.create_connection((address.hostname, address.port), timeout=PATIENCE_S) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        reply = b"".join(iter(lambda: client.recv(65536), b""))
    status = int(reply.split()[1])
    assert status in (301, 400, 404), reply[:200]
    assert b"classified" not in reply
    assert b"root:" not in reply


def test_page_that_is_not_built_says_how_to_build_it_and_is_there_once_it_is(tmp_path: Path) -> None:
    with running(tmp_path / "models", PUNA_PAGE=str(tmp_path / "dist")) as server, server.http as http:
        reply = http.get("/", headers=BROWSER)
        assert (reply.status_code, "'make page'" in reply.text) == (200, True)
        assert http.get("/assets/main-ABC.js").status_code == 404
        assert http.get("/").text == GREETING
        made_up_page(tmp_path / "dist")
        assert "main-ABC.js" in http.get("/", headers=BROWSER).text
        assert http.get("/assets/main-ABC.js").status_code == 200


def test_server_without_a_page_greets_browsers_too(tmp_path: Path) -> None:
    with running(tmp_path, PUNA_PAGE="off") as server, server.http as http:
        assert http.get("/", headers=BROWSER).text == GREETING
        assert http.get("/artifact.html").status_code == 404


def test_page_needs_no_key_and_its_api_does(tmp_path: Path, page: Path) -> None:
    file = tmp_path / "keys.json"
    text, key = keys.new_key("me", ("generate", "read"))
    keys.change_keys(file, lambda known: [*known, key])
    settings = {"PUNA_PAGE": str(page), "PUNA_API_KEYS_FILE": str(file), "PUNA_ROOT_PATH": "/puna"}
    with running(tmp_path / "models", **settings) as server, server.http as http:
        for root in ("", "/puna"):
            assert "main-ABC.js" in http.get(f"{root}/", headers=BROWSER).text
            assert http.get(f"{root}/assets/main-ABC.js").status_code == 200
            assert http.get(f"{root}/artifact.html").status_code == 200
            assert http.get(f"{root}/api/puna/me").status_code == 401
            found = http.get(f"{root}/api/puna/me", headers={"Authorization": f"Bearer {text}"}).json()
            assert (found["keys"], found["name"], sorted(found["scopes"])) == (
                True,
                "me",
                ["generate", "read"],
            )
        moved = http.get("/puna", headers=BROWSER)
        assert (moved.status_code, moved.headers["location"]) == (308, "/puna/")
        assert http.get("/punaa/", headers=BROWSER).status_code == 401  # not the page
        assert text not in server.log.read_text()


def announced(home: Path, *arguments: str, **settings: str) -> list[str]:
    """Return the lines that a server prints when it starts."""
    home.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [*command(), *arguments],
        env=environment(home, **settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline().strip()]
    process.send_signal(signal.SIGTERM)
    lines += process.stdout.read().splitlines()
    process.stdout.close()
    process.wait(PATIENCE_S)
    return lines


def test_address_of_the_page_is_the_second_line_and_its_scheme_and_path_are_right(
    tmp_path: Path, page: Path
) -> None:
    certificate = trustme.CA().issue_cert("localhost", "127.0.0.1")
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(cert)
    certificate.private_key_pem.write_to_path(key)
    first, second = announced(tmp_path / "one", PUNA_PAGE=str(page))
    port = first.split()[2].rpartition(":")[2]
    assert second == f"Open http://127.0.0.1:{port}"
    options = ("--root-path", "/puna/", "--tls-cert", cert, "--tls-key", key)
    first, second = announced(tmp_path / "two", *options, PUNA_HOST="0.0.0.0:0", PUNA_PAGE=str(page))
    assert re.fullmatch(r"Open https://127\.0\.0\.1:\d+/puna", second)
    [only] = announced(tmp_path / "three", PUNA_PAGE=str(tmp_path / "none"))
    assert only.startswith("Listening on ")


def test_page_is_served_over_tls_below_a_path(tmp_path: Path, page: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    cert, key, trusted = (str(tmp_path / name) for name in ("cert.pem", "key.pem", "ca.pem"))
    certificate.cert_chain_pems[0].write_to_path(cert)
    certificate.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(trusted)
    settings = {
        "PUNA_PAGE": str(page),
        "PUNA_TLS_CERT": cert,
        "PUNA_TLS_KEY": key,
        "PUNA_ROOT_PATH": "/puna",
        "PUNA_API_KEYS": "a-long-and-random-key",
    }
    with running(tmp_path / "models", **settings) as server:
        secure = server.url.replace("http://", "https://")
        context = ssl.create_default_context(cafile=trusted)
        with httpx.Client(base_url=secure, verify=context, timeout=PATIENCE_S) as http:
            assert "main-ABC.js" in http.get("/puna/", headers=BROWSER).text
            assert http.get("/puna/api/puna/me").status_code == 401
            good = {"Authorization": "Bearer a-long-and-random-key"}
            assert http.get("/puna/api/puna/chats", headers=good).status_code == 200


@pytest.mark.parametrize("path", ["puna", "/a b", "/../x", "/a//b", "/<script>"])
def test_root_path_that_is_none_is_an_error(tmp_path: Path, path: str) -> None:
    done = commands.run("serve", "--root-path", path, env=environment(tmp_path))
    assert done.returncode == 1
    assert "must be a path such as /puna" in done.stderr


@needs_page
def test_built_page_names_only_files_that_there_are(server: Server) -> None:
    with server.http as http:
        index = http.get("/", headers=BROWSER)
        assert "content-security-policy" in index.headers
        names = re.findall(r'(?:src|href)="([^"]+)"', index.text)
        assert names
        assert not [name for name in names if name.startswith("/") or ":" in name]
        assert {http.get(f"/{name}").status_code for name in names} == {200}
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bon\w+=|\bstyle=", index.text)
