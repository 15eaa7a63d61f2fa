"""A registry to push to, as difficult as Ollama's on demand: signatures, redirects, lost connections."""

from __future__ import annotations

import base64
import hashlib
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from tests.registry.registries import digest_of, reply

_UPLOADS = "/v2/team/model/blobs/uploads/"


@dataclass
class Receiving:
    """A registry of `team/model` that accepts pushes.

    With a `secret`, it requires that token and gives it to clients that sign, unless it `denies`. With
    `redirects`, pieces go to another path, as to cloud storage. `breaks` is the number of connections to drop
    in the middle of a piece, `busy` the number of session requests to answer with 503.
    """

    secret: str = ""
    denies: bool = False
    redirects: bool = False
    breaks: int = 0
    busy: int = 0
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    etags: dict[str, str] = field(default_factory=dict)
    signers: set[str] = field(default_factory=set)
    leaked: list[str] = field(default_factory=list)  # tokens sent where none belong
    address: str = ""
    _sessions: list[dict[int, bytes]] = field(default_factory=list)  # pieces of each, by offset
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def name(self) -> str:
        return f"http://{self.address}/team/model"

    @staticmethod
    def expected_etag(data: bytes, piece: int) -> str:
        """Return the etag of the specification's snapshot: the MD5 of the pieces' MD5s, and their number."""
        sums = [hashlib.md5(data[at : at + piece]).digest() for at in range(0, len(data), piece)]
        return f"{hashlib.md5(b''.join(sums)).hexdigest()}-{len(sums)}"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = urlsplit(handler.path).path
        body = self._body(handler)
        if body is None:
            return
        given = handler.headers.get("authorization", "")
        if path == "/token":
            self._token(handler, given)
        elif path.startswith("/storage/"):
            if given:
                self.leaked.append(given)
            session, at = map(int, path.split("/")[-2:])
            self._sessions[session][at] = body
            reply(handler, 200, b"")
        elif self.secret and given != f"Bearer {self.secret}":
            realm = (
                f'Bearer realm="http://{self.address}/token",service="x",scope="repository:team/model:push"'
            )
            reply(handler, 401, b"", {"www-authenticate": realm})
        else:
            self._registry(handler, path, body)

    def _registry(self, handler: BaseHTTPRequestHandler, path: str, body: bytes) -> None:
        method = handler.command
        if method == "HEAD":
            known = path.rpartition("/")[2] in self.blobs
            reply(handler, 200 if known else 404, b"")
        elif method == "POST" and path == _UPLOADS:
            if self.busy:
                self.busy -= 1
                reply(handler, 503, b"busy")
                return
            with self._lock:
                self._sessions.append({})
                reply(handler, 202, b"", {"location": f"{_UPLOADS}{len(self._sessions) - 1}"})
        elif path.startswith(_UPLOADS):
            self._upload(handler, path, body)
        elif method == "PUT" and path.startswith("/v2/team/model/manifests/"):
            self.manifests[path.rpartition("/")[2]] = body
            reply(handler, 201, b"")
        else:
            reply(handler, 404, b"")

    def _upload(self, handler: BaseHTTPRequestHandler, path: str, body: bytes) -> None:
        """Handle a request within a session.

        Each push has its own: requests of a killed client may be read late.
        """
        method, session = handler.command, int(path.rpartition("/")[2])
        pieces = self._sessions[session]
        if method == "PATCH":
            at = int(handler.headers["content-range"].partition("-")[0])
            if self.redirects:
                location = f"http://{self.address}/storage/{session}/{at}"
                reply(handler, 307, b"", {"location": location, "docker-upload-location": path})
                return
            pieces[at] = body
            reply(handler, 202, b"", {"location": path})
        elif method == "GET":
            end = sum(map(len, pieces.values()))
            reply(handler, 204, b"", {"range": f"0-{max(end - 1, 0)}", "location": handler.path})
        elif method == "PUT":
            query = parse_qs(urlsplit(handler.path).query)
            data = b"".join(piece for _, piece in sorted(pieces.items()))
            matches = digest_of(data) == query["digest"][0]
            if matches:
                self.blobs[digest_of(data)] = data
                self.etags[digest_of(data)] = query.get("etag", [""])[0]
            reply(handler, 201 if matches else 400, b"")
        else:
            reply(handler, 404, b"")

    def _body(self, handler: BaseHTTPRequestHandler) -> bytes | None:
        """Return the body of the request, or None if the connection breaks before it is complete."""
        length = int(handler.headers.get("content-length", 0))
        carries_piece = handler.path.startswith("/storage/") if self.redirects else handler.command == "PATCH"
        if carries_piece and self.breaks and length > 1000:
            self.breaks -= 1
            handler.rfile.read(length // 2)
            handler.close_connection = True
            return None
        body = handler.rfile.read(length)
        return body if len(body) == length else None  # shorter if the client was killed while sending

    def _token(self, handler: BaseHTTPRequestHandler, given: str) -> None:
        public, _, signature = given.partition(":")
        if not signature:
            reply(handler, 401, b"")
            return
        nothing = base64.b64encode(hashlib.sha256(b"").hexdigest().encode()).decode()
        signed = f"GET,http://{self.address}{handler.path},{nothing}"
        key: Any = load_ssh_public_key(f"ssh-ed25519 {public}".encode())
        key.verify(base64.b64decode(signature), signed.encode())
        assert {"ts", "nonce", "service", "scope"} == set(parse_qs(urlsplit(handler.path).query))
        self.signers.add(f"ssh-ed25519 {public}")
        reply(handler, 403 if self.denies else 200, f'{{"token": "{self.secret}"}}'.encode())
