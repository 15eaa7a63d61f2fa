"""`/api/blobs/:digest`: files on their way into the store."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from puna.server.http.replies import empty
from puna.server.http.routing import route
from puna.server.jobs.backend import Backend


def routes(backend: Backend) -> list[Route]:
    async def blob(request: Request) -> Response:
        digest = request.path_params["digest"]
        if request.method == "HEAD":
            return empty(200 if backend.store.has_blob(digest) else 404)
        try:
            created = await backend.store.put_blob_async(digest, request.stream())
        except ClientDisconnect:
            return empty(499)  # nobody reads it; the part received is thrown away
        return empty(201 if created else 200)

    return [route("/api/blobs/{digest}", blob, "HEAD", "POST")]
