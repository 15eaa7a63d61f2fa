"""The examples of reverse proxies in share/puna, as they stand, in front of a real server."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import trustme

from tests import commands
from tests.e2e.servers import Server, add_model, endless, environment, running
from tests.held import HeldRunners, wait_until_stopped
from tests.ports import free_port
from tests.tiny.llama import TinyLlama, tiny_llama_gguf
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

EXAMPLES = Path(__file__).resolve().parents[2] / "share" / "puna"


@dataclass
class Proxy:
    """A running proxy, and how to trust it."""

    url: str
    trust: ssl.SSLContext
    log: Path

    def client(self, address: str = "127.0.0.1", **headers: str) -> httpx.Client:
        """Return a client that connects from an address of this machine."""
        transport = httpx.HTTPTransport(verify=self.trust, local_address=address)
        return httpx.Client(base_url=self.url, transport=transport, headers=headers, timeout=120)


def replaced(text: str, changes: dict[str, str]) -> str:
    """Return an example with its names and places changed to those of the test; each must be in it."""
    for old, new in changes.items():
        text, count = re.subn(old, new, text)
        assert count, f"the example has no {old}"
    return text


def nginx(folder: Path, port: int, puna: str, chain: Path, key: Path) -> list[str]:
    changes = {
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "llm.example.com;": "localhost;",
        r"127\.0\.0\.1:11434": puna,
        r"/etc/\S+/fullchain.pem": str(chain),
        r"/etc/\S+/privkey.pem": str(key),
    }
    places = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"{'user root;' if os.geteuid() == 0 else ''}\ndaemon off;\npid {folder}/pid;\nerror_log stderr;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{places}"
        + replaced((EXAMPLES / "nginx.conf").read_text(), changes)
        + "}\n"
    )
    return ["nginx", "-e", "stderr", "-p", str(folder), "-c", str(folder / "nginx.conf")]


def caddy(folder: Path, port: int, puna: str, chain: Path, key: Path) -> list[str]:
    changes = {
        "(?m)^llm.example.com {": f"https://localhost:{port} {{\n\ttls {chain} {key}\n\tbind 127.0.0.1",
        r"127\.0\.0\.1:11434": puna,
    }
    (folder / "Caddyfile").write_text(
        "{\n\tadmin off\n\tauto_https disable_redirects\n\tskip_install_trust\n}\n"
        + replaced((EXAMPLES / "Caddyfile").read_text(), changes)
    )
    return ["caddy", "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]


KINDS: dict[str, Callable[[Path, int, str, Path, Path], list[str]]] = {"nginx": nginx, "caddy": caddy}


@contextmanager
def proxying(kind: str, folder: Path, server: Server) -> Iterator[Proxy]:
    """Run a proxy of that kind in front of the server. Skips the test where it is not installed."""
    program = shutil.which(kind, path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")
    if program is None:
        pytest.skip(f"{kind} is not installed")
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    chain, key = folder / "fullchain.pem", folder / "privkey.pem"
    issued.private_key_pem.write_to_path(str(key))
    for blob in issued.cert_chain_pems:
        blob.write_to_path(str(chain), append=True)
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    port = free_port()
    _, *words = KINDS[kind](folder, port, urlsplit(server.url).netloc, chain, key)
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "XDG_DATA_HOME": str(folder)}
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [program, *words], env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:

        def listens() -> bool:
            assert process.poll() is None, log.read_text()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        wait_until(listens, f"{kind} listening")
        yield Proxy(f"https://localhost:{port}", trust, log)
    finally:
        process.terminate()
        process.wait(timeout=60)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> HeldRunners:
    return HeldRunners(tmp_path_factory.mktemp("held"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, held: HeldRunners) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("proxied")
    config = TinyLlama(context=8192, seed=3)
    model = tiny_llama_gguf(folder / "endless.gguf", config, model=endless(config))
    with running(folder / "models", PUNA_PING_INTERVAL="10ms", **held.settings) as started:
        add_model(started, "endless", model)
        yield started


@pytest.fixture(scope="module", params=list(KINDS))
def proxy(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, server: Server
) -> Iterator[Proxy]:
    with proxying(request.param, tmp_path_factory.mktemp(request.param), server) as started:
        yield started


ASK = {
    "model": "endless", "temperature": 0, "max_tokens": 4, "stream": True,
    "messages": [{"role": "user", "content": "Hello"}],
}  # fmt: skip

ENDLESS = {
    "model": "endless", "prompt": "x", "options": {"temperature": 0, "num_predict": -1, "num_ctx": 8192},
}  # fmt: skip


@contextmanager
def answering(http: httpx.Client, proxy: Proxy) -> Iterator[None]:
    """Send a request whose answer does not end, and keep it in the block once its first piece is here.

    Caddy 2.6 sometimes closes its connection to a server whose answer begins at once: caddyserver/caddy#5431.
    Then its log says so, and the request is sent again.
    """
    lost = "aborting with incomplete response"
    while True:
        losses = proxy.log.read_text().count(lost)
        with http.stream("POST", "/api/generate", json=ENDLESS) as reply:
            assert reply.status_code == 200, proxy.log.read_text()
            pieces = reply.iter_raw()  # kept, since the connection closes with it
            if next(pieces, None) is not None:
                yield
                return
        assert losses < proxy.log.read_text().count(lost) <= 5, proxy.log.read_text()


def test_pieces_of_a_stream_arrive_while_the_rest_is_held_back(
    server: Server, proxy: Proxy, held: HeldRunners
) -> None:
    server.unload()
    with proxy.client() as http, held.stopping(), ExitStack() as stack:
        reply = stack.enter_context(http.stream("POST", "/v1/chat/completions", json=ASK))
        pieces = reply.iter_text()
        assert next(pieces).startswith(":")  # a sign of life, from a server whose model cannot go on
        wait_until(lambda: bool(server.runners()), "the model's process")
        wait_until_stopped(server.runner())
        server.runner().resume()
        text = "".join(pieces)
    assert text.endswith("data: [DONE]\n\n")
    assert text.count('"content":') >= 2


def test_client_that_leaves_ends_its_request(server: Server, proxy: Proxy) -> None:
    with proxy.client() as http:
        with answering(http, proxy):
            assert len(server.running_requests()) == 1
        wait_until(lambda: server.running_requests() == [], "the request to end")


def test_large_files_are_uploaded(server: Server, proxy: Proxy) -> None:
    content = os.urandom(1 << 20) * 3  # nginx would refuse more than 1 MiB
    digest = f"sha256:{sha256(content).hexdigest()}"
    with proxy.client() as http:
        assert http.post(f"/api/blobs/{digest}", content=content).status_code == 201
        assert http.head(f"/api/blobs/{digest}").status_code == 200


def test_clients_have_their_own_addresses_and_no_others(server: Server, proxy: Proxy) -> None:
    with proxy.client("127.0.0.2", **{"X-Forwarded-For": "192.0.2.9"}) as http, server.http as inside:
        with answering(http, proxy), inside.stream("GET", "/api/puna/live") as live:
            for line in live.iter_lines():
                if line.startswith("data: ") and (seen := json.loads(line[6:])["requests"]):
                    break
        assert [request["client"] for request in seen] == ["127.0.0.2"]
        wait_until(lambda: server.running_requests() == [], "the request to end")


@pytest.mark.parametrize("path", ["/metrics", "/%6detrics", "/api/debug/cache"])
def test_inner_workings_stay_inside(server: Server, proxy: Proxy, path: str) -> None:
    with proxy.client() as http, server.http as inside:
        assert http.get(path).status_code == 404
        assert inside.get("/metrics").status_code == 200


@pytest.mark.parametrize("kind", KINDS)
def test_keys_are_passed_on(kind: str, tmp_path: Path) -> None:
    with running(tmp_path / "models") as server, proxying(kind, tmp_path, server) as proxy:
        made = commands.run("key", "new", "--name", "me", env=environment(server.models))
        key = made.stdout.strip()
        with proxy.client() as http:
            assert http.get("/api/tags").status_code == 401
            for headers in ({"Authorization": f"Bearer {key}"}, {"x-api-key": key}):
                assert http.get("/api/tags", headers=headers).status_code == 200
