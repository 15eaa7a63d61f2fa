"""The page's files, as they were built: `/`, `/artifact.html` and everything below `/assets`."""

from __future__ import annotations

import asyncio
import gzip
import mimetypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from puna.errors import PathNotFoundError
from puna.server.http.bodies import BrowserRoute
from puna.server.http.replies import text_reply

#: Everything comes from the server itself, and nothing inline runs.
PAGE_POLICY: Final = "; ".join([
    "default-src 'self'", "style-src 'self'", "img-src 'self' data: blob:", "media-src 'self' blob:",
    "connect-src 'self'", "frame-src 'self'", "worker-src 'self'", "object-src 'none'", "base-uri 'self'",
    "form-action 'none'", "frame-ancestors 'none'",
])  # fmt: skip

#: A document that a model wrote may run its own scripts, without an origin and without a network.
ARTIFACT_POLICY: Final = "; ".join([
    "sandbox allow-scripts", "default-src 'none'", "script-src 'unsafe-inline'", "style-src 'unsafe-inline'",
    "img-src data: blob:", "font-src data:", "frame-ancestors 'self'",
])  # fmt: skip

_NOT_BUILT: Final = (
    "Puna is running, without its page: this checkout has not built it. Run 'make page', which needs\n"
    "Node.js or gets it from PyPI, and reload. The APIs work as they are; /docs describes them.\n"
)
_SECURITY: Final = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}
_FOREVER: Final = "public, max-age=31536000, immutable"  # names of assets have a hash of their content
_SMALLEST_PACKED: Final = 1024  # bytes; less fits one packet


@dataclass(frozen=True)
class _Asset:
    path: Path
    media_type: str
    is_packed: bool  # for clients that take gzip


@cache
def _assets(folder: Path) -> dict[str, _Asset]:
    """Return the built files by their path below the page."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            if path.suffix == ".mjs":
                kind = "text/javascript"
            if is_text := kind.startswith("text/") or kind.endswith(("javascript", "json", "svg+xml")):
                kind += "; charset=utf-8"
            name = path.relative_to(folder).as_posix()
            # Only assets: a file of another name can change while the server runs.
            is_packed = is_text and name.startswith("assets/") and path.stat().st_size >= _SMALLEST_PACKED
            found[name] = _Asset(path, kind, is_packed)
    return found


@cache
def _packed(path: Path) -> bytes:
    """Return a file as gzip packs it: packed files beside it would make up a ninth of the wheel."""
    return gzip.compress(path.read_bytes())


async def _reply(folder: Path, request: Request, name: str, headers: dict[str, str]) -> Response:
    asset = _assets(folder).get(name)
    if asset is None:
        raise PathNotFoundError(f"the page has no file {name:.100}")
    given = request.headers.get("accept-encoding", "").split(",")
    accepted = {each.partition(";")[0].strip() for each in given}
    headers = {**_SECURITY, **headers, "vary": "accept-encoding", "content-type": asset.media_type}
    if asset.is_packed and "gzip" in accepted:
        packed = await asyncio.to_thread(_packed, asset.path)
        return Response(packed, headers={**headers, "content-encoding": "gzip"})
    return FileResponse(asset.path, headers=headers)


def is_built(folder: Path) -> bool:
    """Whether the page is in this folder."""
    if "index.html" not in _assets(folder):
        _assets.cache_clear()  # it may be built while the server runs
    return "index.html" in _assets(folder)


def routes(folder: Path) -> list[Route]:
    """Return the routes of the page's files in `folder`.

    That of `/` has to come before the one that greets programs.
    """

    async def page(request: Request) -> Response:
        """The page."""
        if not is_built(folder):
            return text_reply(_NOT_BUILT)
        headers = {"content-security-policy": PAGE_POLICY, "cache-control": "no-cache"}
        return await _reply(folder, request, "index.html", headers)

    async def artifact(request: Request) -> Response:
        """The frame in which the page shows documents that a model wrote."""
        headers = {"content-security-policy": ARTIFACT_POLICY, "cache-control": "no-cache"}
        return await _reply(folder, request, "artifact.html", headers)

    async def asset(request: Request) -> Response:
        """A part of the page."""
        return await _reply(
            folder, request, f"assets/{request.path_params['name']}", {"cache-control": _FOREVER}
        )

    made = [
        BrowserRoute("/", page, methods=["GET"]),
        Route("/artifact.html", artifact, methods=["GET"]),
        Route("/assets/{name:path}", asset, methods=["GET"]),
    ]
    for each in made:
        each.methods = {"GET"}  # Starlette adds HEAD, which programs ask for at `/`
    return list(made)
