"""A model hub with one repository: Hugging Face's tree API, file downloads and registry."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import unquote, urlsplit

from tests.registry.registries import Published, Registry, digest_of, reply, serve_blob


@dataclass
class StandIn:
    """A hub serving `team/model-GGUF`. The `large` files are in LFS, so their digests are listed.

    With a `token`, everything but the tree requires it. As a registry, it has only the `offered` models, by
    tag; it refuses others as the real one refuses split models.
    """

    large: dict[str, bytes]
    small: dict[str, bytes] = field(default_factory=dict)
    offered: dict[str, Published] = field(default_factory=dict)
    token: str = ""
    pages: int = 1
    requested: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)  # received from clients

    def take_over(self, registry: Registry) -> None:
        """Answer in place of `registry`."""
        self._registry = registry
        registry.intercept = self._intercept

    def _intercept(self, handler: BaseHTTPRequestHandler) -> bool:
        address = urlsplit(handler.path)
        path = unquote(address.path)
        self.requested.append(path)
        given = handler.headers.get("authorization", "").removeprefix("Bearer ")
        self.tokens.add(given)
        if path == "/api/models/team/model-GGUF/tree/main":
            self._tree(handler, address.query)
        elif "/team/model-GGUF/" not in path:
            reply(handler, 401, b"Invalid username or password.", {"x-error-code": "RepoNotFound"})
        elif self.token and given != self.token:
            reply(
                handler, 401, b"Access to model team/model-GGUF is restricted.", {"x-error-code": "GatedRepo"}
            )
        elif path.startswith("/v2/"):
            self._v2(handler, path)
        else:
            name = path.removeprefix("/team/model-GGUF/resolve/main/")
            data = self.large.get(name, self.small.get(name))
            if data is None:
                reply(handler, 404, b"Entry not found", {"x-error-code": "EntryNotFound"})
            else:
                serve_blob(handler, data)
        return True

    def _v2(self, handler: BaseHTTPRequestHandler, path: str) -> None:
        kind, _, last = path.removeprefix("/v2/team/model-GGUF/").partition("/")
        if kind == "manifests" and last in self.offered:
            reply(handler, 200, self.offered[last].manifest)
        elif kind == "manifests":
            reply(handler, 400, b'{"error":"The specified tag is not available or is sharded"}')
        else:
            blobs = {digest: data for each in self.offered.values() for digest, data in each.blobs.items()}
            serve_blob(handler, blobs[last])

    def _tree(self, handler: BaseHTTPRequestHandler, query: str) -> None:
        entries: list[dict[str, object]] = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": "x"}]
        for path, data in self.large.items():
            lfs = {"oid": digest_of(data).removeprefix("sha256:"), "size": len(data), "pointerSize": 134}
            entries.append({"type": "file", "oid": "1" * 40, "size": len(data), "lfs": lfs, "path": path})
        entries += [
            {"type": "file", "oid": "2" * 40, "size": len(data), "path": path}
            for path, data in self.small.items()
        ]
        per_page = -(-len(entries) // self.pages)
        page = int(query.partition("cursor=")[2] or 0)
        tree = f"http://{self._registry.address}/api/models/team/model-GGUF/tree/main"
        more = f'<{tree}?recursive=true&cursor={page + 1}>; rel="next"'
        links = {"link": more} if page + 1 < self.pages else {}
        data = json.dumps(entries[page * per_page : (page + 1) * per_page]).encode()
        reply(handler, 200, data, {"content-type": "application/json", **links})
